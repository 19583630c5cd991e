"""Counts by size, as Prometheus keeps them. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from mlxcel.errors import ConfigError

__all__ = ["SECONDS", "Histogram"]

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
"""Upper bounds for times, seconds."""


class Histogram:
    """Observations by bucket; never grows.

    Parameters
    ----------
    bounds : sequence of float
        Upper bounds of the buckets, ascending; one more takes what is larger.

    Raises
    ------
    ConfigError
        The bounds do not ascend, or there are none.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        if not bounds or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ConfigError(f"bounds of a histogram must ascend, got {list(bounds)}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, several times if need be."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times

    def quantile(self, share: float) -> float | None:
        """Value below which a share of the observations lies, linear inside a bucket.

        ``None`` before the first; the last bound for what lies beyond it.
        """
        if not self.count:
            return None
        wanted, below = share * self.count, 0
        for at, count in enumerate(self.counts[:-1]):
            if count and below + count >= wanted:
                low = self.bounds[at - 1] if at else 0.0
                return low + (self.bounds[at] - low) * max(wanted - below, 0.0) / count
            below += count
        return self.bounds[-1]

    def snapshot(self) -> dict[str, Any]:
        """Bounds, counts by bucket, sum and count, with the median and the 95th percentile."""
        return {
            "bounds": list(self.bounds),
            "counts": list(self.counts),
            "sum": self.total,
            "count": self.count,
            "p50": self.quantile(0.5),
            "p95": self.quantile(0.95),
        }
