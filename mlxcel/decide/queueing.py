"""Who is served next, and who makes room for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Rank", "victims"]


class Rank(NamedTuple):
    """Place in the order of service, the least first.

    Attributes
    ----------
    priority : int
        As the request said; lower is earlier.
    arrival : int
        Number of its arrival. A request that was pushed back keeps it.
    """

    priority: int
    arrival: int


def victims(
    candidate: Rank, running: Sequence[Rank], fits: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Running requests that make room for one that waits.

    Parameters
    ----------
    candidate : Rank
        Of the one that waits.
    running : sequence of Rank
        Of those that run.
    fits : callable
        Whether there is room for the candidate if only these (indices of ``running``) go on.

    Returns
    -------
    list of int
        Indices of ``running``, the last in the order of service first; empty where no number of
        requests of a *later* priority makes enough room, so that none is pushed back in vain.
        Equals of the candidate never make room: they would push each other back for ever.
    """
    later = sorted(
        (at for at, rank in enumerate(running) if rank.priority > candidate.priority),
        key=lambda at: running[at],
        reverse=True,
    )
    for count in range(1, len(later) + 1):
        gone = set(later[:count])
        if fits([at for at in range(len(running)) if at not in gone]):
            return later[:count]
    return []
