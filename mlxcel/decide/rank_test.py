"""The exact rank test of two small samples, and the interval of their ratio that belongs to it.

Mann-Whitney U (H. B. Mann, D. R. Whitney, *Annals of Mathematical Statistics* 18, 1947, 50-60):
no assumption about the shape of either distribution, which timings have in no good form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = ["Ratio", "compare_samples", "smallest_p", "u_counts", "u_test"]

_MAX_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one sample compares with another.

    Attributes
    ----------
    ratio : float
        Median of the second over median of the first.
    low, high : float or None
        Interval of the ratio; ``None`` where there are too few samples for its confidence.
    p : float
        Two-sided probability of ranks at least this uneven if nothing differs.
    """

    ratio: float
    low: float | None
    high: float | None
    p: float


def u_counts(first: int, second: int) -> list[int]:
    """In how many orders of two samples U takes each value.

    Parameters
    ----------
    first, second : int
        Sizes of the samples, at least 1 each.

    Returns
    -------
    list of int
        For U = 0 to ``first * second``; the coefficients of the Gaussian binomial, which sum
        to ``comb(first + second, first)``.
    """
    counts = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        # Times (1 - q^(second + size)), then divided by (1 - q^size): both exact.
        for at in range(len(counts) - 1, second + size - 1, -1):
            counts[at] -= counts[at - second - size]
        for at in range(size, len(counts)):
            counts[at] += counts[at - size]
    return counts


def u_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided exact p of the rank test.

    Of equal values one half counts for each side, and the result is rounded towards "no
    difference", so that ties never make a difference look surer than it is.

    Raises
    ------
    ConfigError
        No sample, a value that is not finite, or more samples than a campaign has.
    """
    _check(first, second)
    wins = sum((b > a) + (b == a) / 2 for a in first for b in second)
    least = math.ceil(min(wins, len(first) * len(second) - wins))
    counts = u_counts(len(first), len(second))
    return min(1.0, 2 * sum(counts[: least + 1]) / sum(counts))


def smallest_p(first: int, second: int) -> float:
    """The smallest p that samples of these sizes can give."""
    return min(1.0, 2 / math.comb(first + second, first))


def compare_samples(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95
) -> Ratio:
    """Ratio of two samples, with the interval that the rank test gives.

    Parameters
    ----------
    first, second : sequence of float
        Positive values, in one unit.
    confidence : float
        Least confidence of the interval, above 0 and below 1.

    Returns
    -------
    Ratio
        The interval holds every factor by which the first sample can be multiplied without
        the test telling both apart: it lies between two order statistics of all ratios
        (J. L. Hodges, E. L. Lehmann, *Annals of Mathematical Statistics* 34, 1963, 598-611).

    Raises
    ------
    ConfigError
        See `u_test`; or a value or a confidence out of bounds.
    """
    _check(first, second)
    if min(*first, *second) <= 0:
        raise ConfigError(f"a ratio needs positive samples, got {[*first]} and {[*second]}")
    if not 0 < confidence < 1:
        raise ConfigError(f"a confidence is above 0 and below 1, got {confidence}")
    ratios = sorted(b / a for a in first for b in second)
    counts = u_counts(len(first), len(second))
    most = (1 - confidence) / 2 * sum(counts)
    # The largest number of orders that may be cut off at each end.
    cut, below = 0, 0
    while below + counts[cut] <= most:
        below += counts[cut]
        cut += 1
    return Ratio(
        ratio=statistics.median(second) / statistics.median(first),
        low=ratios[cut - 1] if cut else None,
        high=ratios[-cut] if cut else None,
        p=u_test(first, second),
    )


def _check(first: Sequence[float], second: Sequence[float]) -> None:
    if not first or not second or max(len(first), len(second)) > _MAX_SAMPLES:
        raise ConfigError(
            f"a rank test needs 1 to {_MAX_SAMPLES} values a side, got {len(first)} and "
            f"{len(second)}"
        )
    if not all(math.isfinite(value) for value in (*first, *second)):
        raise ConfigError(f"a rank test needs finite values, got {[*first]} and {[*second]}")
