"""Counters of a request that has run in several slots, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["added"]


def added(earlier: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """Counters of the slots so far, as `SlotTable.stats` has them of one.

    Parameters
    ----------
    earlier : dict or None
        Of the slots that the request has left.
    now : dict
        Of the present one.
    """
    if earlier is None:
        return dict(now)
    least = [each["width_min"] for each in (earlier, now) if each["rounds"]]
    return dict(now) | {
        "rounds": earlier["rounds"] + now["rounds"],
        "width_min": min(least, default=0),
        "width_max": max(earlier["width_max"], now["width_max"]),
        "proposed": [a + b for a, b in zip(earlier["proposed"], now["proposed"], strict=True)],
        "accepted": [a + b for a, b in zip(earlier["accepted"], now["accepted"], strict=True)],
    }
