"""Prompt lookup by a linear scan: the definition of `NgramIndex`."""

from __future__ import annotations

from collections.abc import Sequence


def propose(history: Sequence[int], want: int, min_n: int = 2, max_n: int = 4) -> list[int]:
    """What followed the most recent earlier occurrence of the longest suffix that has one."""
    size = len(history)
    for n in range(min(max_n, size), min_n - 1, -1):
        suffix = history[size - n :]
        for end in range(size - 1, n - 1, -1):
            if history[end - n : end] == suffix:
                return list(history[end : end + want])
    return []
