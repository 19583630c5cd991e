"""Stored verdicts of the adaptive policy, read for people: whatever a file holds, it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.verdict import Verdict, VerdictKey, parse_json
from mlxcel.errors import ConfigError, LoadError

__all__ = ["Stored", "StoredState", "read_stored"]

StoredState = Literal["runs", "declined", "left to the gate", "outdated", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One file.

    Attributes
    ----------
    name : str
        Name of the file.
    state : str
        What the verdict says; ``outdated`` where the policy would measure again, ``corrupt``
        where nothing can be read.
    reason : str
        Why, for people.
    key, verdict : VerdictKey and Verdict, or None
        What was read.
    age_seconds : float or None
        Since it was settled.
    """

    name: str
    state: StoredState
    reason: str
    key: VerdictKey | None = None
    verdict: Verdict | None = None
    age_seconds: float | None = None


def read_stored(
    name: str,
    text: str,
    *,
    now: float,
    versions: Mapping[str, str],
    round_loop: int = ROUND_LOOP_VERSION,
) -> Stored:
    """Read one file of verdicts.

    Parameters
    ----------
    name, text : str
        Name and content of the file.
    now : float
        Seconds since 1970.
    versions : mapping of str to str
        Installed versions of ``mlx`` and ``mlxcel``: a verdict of others is outdated.
    round_loop : int
        Current version of the round loop.

    Returns
    -------
    Stored
        Never an error: what cannot be read is ``corrupt``, with the reason.
    """
    if not text.strip():
        return Stored(name=name, state="corrupt", reason="the file is empty: delete it")
    try:
        key = _key(parse_json(text, "verdict"))
        verdict = Verdict.from_json(text, key)
    except (LoadError, ConfigError) as error:
        return Stored(name=name, state="corrupt", reason=error.message)
    age = now - verdict.settled_at
    why = _outdated(key, age, verdict.max_age, {**versions, "round_loop": round_loop})
    return Stored(
        name=name,
        state="outdated" if why else _state(verdict),
        reason=why or verdict.describe(),
        key=key,
        verdict=verdict,
        age_seconds=age,
    )


def _key(data: object) -> VerdictKey:
    """The key of a record; `Verdict.from_json` checks all the rest against it."""
    value = data.get("key") if isinstance(data, Mapping) else None
    names = {field.name for field in dataclasses.fields(VerdictKey)}
    if not isinstance(value, Mapping) or value.keys() != names:
        raise LoadError("the file holds no verdict with its whole key: delete it", param="key")
    fields: dict[str, Any] = dict(value)
    return VerdictKey(**fields)


def _state(verdict: Verdict) -> StoredState:
    if verdict.zone in ("enable", "decline"):
        return "runs" if verdict.zone == "enable" else "declined"
    return "left to the gate"


def _outdated(
    key: VerdictKey, age: float, limit: float, current: Mapping[str, str | int]
) -> str:
    """Why the policy would not take a verdict over; empty where it would."""
    changed = [
        f"{name.replace('_', ' ')} {getattr(key, name)}, now {value}"
        for name, value in current.items()
        if getattr(key, name) != value
    ]
    if changed:
        return f"measured again at the next use: {'; '.join(changed)}"
    if age > limit:
        return f"measured again at the next use: {age / 86400:.1f} days old"
    return ""
