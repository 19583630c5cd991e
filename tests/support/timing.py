"""Limits on seconds that hold on a machine which has other work too."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["quickest"]


def quickest(attempt: Callable[[], float], limit: float, tries: int = 3) -> float:
    """Least seconds of some attempts, which end with the first one within a limit.

    Other work on the machine only ever adds to a time, so the least says most about our part.

    Parameters
    ----------
    attempt : callable
        Does it all and returns the seconds that it took.
    limit : float
        Seconds, to which the caller compares the result.
    tries : int
        Attempts at most.
    """
    least = math.inf
    for _ in range(tries):
        least = min(least, attempt())
        if least < limit:
            break
    return least
