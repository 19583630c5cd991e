"""Comparing arms fairly on a shared machine: interleaved repetitions, medians, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Ratio of two arms, pair by pair; above 1 the first is faster."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def interleave(
    arms: Sequence[Callable[[], float]], repeats: int, warmups: int = 1
) -> list[list[float]]:
    """Call every arm ``repeats`` times, forwards and backwards in turn (A B B A ...).

    Parameters
    ----------
    arms : sequence of callable
        Each runs once and returns its seconds.
    repeats : int
        Counted runs of each.
    warmups : int
        Runs of each that are not counted, first.
    """
    for arm in arms:
        for _ in range(warmups):
            arm()
    seconds: list[list[float]] = [[] for _ in arms]
    order = list(range(len(arms)))
    for repeat in range(repeats):
        for index in order if repeat % 2 == 0 else reversed(order):
            seconds[index].append(arms[index]())
    return seconds


def ratio(faster: Sequence[float], slower: Sequence[float]) -> Ratio:
    """How many times ``faster`` is as fast as ``slower``, from seconds of paired runs."""
    values = sorted(b / a for a, b in zip(faster, slower, strict=True))
    return Ratio(statistics.median(values), values[0], values[-1])
