"""Words of a measured record that follow from what it holds: protocol, exactness, memory."""

from __future__ import annotations

from collections.abc import Iterable

from mlxcel.decide.provenance import Provenance, guards_ran
from mlxcel.decide.records import Exactness, Protocol, Row

__all__ = ["exactness_word", "memory_gb", "protocol_word"]


def exactness_word(found: Provenance, rows: Iterable[Row]) -> Exactness:
    """The word for the path that was served, which records of several engines share.

    ``exact`` where the probe found logits equal to the last bit. Equal choices alone are not
    called so, and different tokens never.
    """
    level = found.exactness.level if found.exactness is not None else "unprobed"
    if level == "divergent" or any(row.exact is False for row in rows):
        return "inexact-wide"
    return "exact" if level == "bitwise" else "unknown"


def protocol_word(found: Provenance) -> Protocol:
    """Whether guards were at work."""
    return "guarded" if guards_ran(found.guards) else "unguarded"


def memory_gb(found: Provenance) -> float:
    """Memory in GB, as the host of a record has it."""
    return round(found.memory_bytes / 1e9, 1)
