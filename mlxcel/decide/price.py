"""What invariant numerics cost, from seconds of the same work in both numerics. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = ["Price", "price_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one kind of decoding.

    Attributes
    ----------
    what : str
        The kind, for people.
    fast, invariant : float
        Median seconds of one pass.
    ratio, low, high : float
        Invariant over fast, run by run: median, smallest and largest.
    runs : int
        Runs of each.
    """

    what: str
    fast: float
    invariant: float
    ratio: float
    low: float
    high: float
    runs: int

    def describe(self) -> str:
        """One phrase, for people."""
        return (
            f"{self.what}: {self.ratio:.2f} ({self.low:.2f} to {self.high:.2f}) times the fast "
            f"one, {1e3 * self.fast:.1f} against {1e3 * self.invariant:.1f} ms, {self.runs} runs"
        )


def price_of(what: str, fast: Sequence[float], invariant: Sequence[float]) -> Price:
    """The price that paired runs show.

    Parameters
    ----------
    what : str
        The kind of decoding.
    fast, invariant : sequence of float
        Seconds of one pass; entry i of both ran next to each other.

    Raises
    ------
    ConfigError
        There is no run, a run has no partner, or a time is not positive.
    """
    if not fast or len(fast) != len(invariant) or min(*fast, *invariant) <= 0:
        raise ConfigError(f"price of {what}: needs paired, positive times")
    ratios = sorted(b / a for a, b in zip(fast, invariant, strict=True))
    return Price(
        what=what,
        fast=statistics.median(fast),
        invariant=statistics.median(invariant),
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        runs=len(fast),
    )
