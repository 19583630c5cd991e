"""Round cost over block width: least squares, break-even and what a wider block must bring.

Costs are in classic steps (one classic step costs 1), widths are block widths K.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = [
    "SPREAD_LIMIT_PERCENT",
    "Line",
    "break_even",
    "fit_line",
    "implied_emitted",
    "least_squares",
    "spread_percent",
    "widening_pays",
]

SPREAD_LIMIT_PERCENT = 4.0
"""Largest spread with which a row is published (lablup/mlxcel#1215)."""


@dataclass(frozen=True, slots=True)
class Line:
    """``cost(K) = a + b K``.

    Attributes
    ----------
    a, b : float
        Classic steps, and classic steps per position.
    largest_residual : float
        Largest distance of a point from the line, in classic steps.
    points : int
        How many points it was fitted to.
    """

    a: float
    b: float
    largest_residual: float
    points: int

    def cost(self, width: float) -> float:
        """Round cost at a width, in classic steps."""
        return self.a + self.b * width


def least_squares(points: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """Weighted least squares of ``y = a + b x``.

    Parameters
    ----------
    points : sequence of (x, y, weight)
        Finite, weights not negative.

    Returns
    -------
    (a, b) or None
        ``None`` where fewer than two different x have a weight.
    """
    total = math.fsum(weight for _, _, weight in points)
    if total <= 0:
        return None
    mean_x = math.fsum(x * weight for x, _, weight in points) / total
    mean_y = math.fsum(y * weight for _, y, weight in points) / total
    spread = math.fsum(weight * (x - mean_x) ** 2 for x, _, weight in points)
    if spread <= 1e-12 * total:
        return None
    b = math.fsum(weight * (x - mean_x) * (y - mean_y) for x, y, weight in points) / spread
    return mean_y - b * mean_x, b


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit a line by ordinary least squares.

    Parameters
    ----------
    points : sequence of (float, float)
        Width and round cost.

    Raises
    ------
    ConfigError
        Fewer than two different widths, or a value that is not finite.
    """
    if not all(math.isfinite(value) for point in points for value in point):
        raise ConfigError(f"a fit needs finite widths and costs, got {list(points)}")
    found = least_squares([(width, cost, 1.0) for width, cost in points])
    if found is None:
        raise ConfigError(
            f"a fit needs at least two different widths, got {[width for width, _ in points]}"
        )
    a, b = found
    residual = max(abs(cost - (a + b * width)) for width, cost in points)
    return Line(a=a, b=b, largest_residual=residual, points=len(points))


def break_even(line: Line, width: float) -> float:
    """Tokens that a verify of a width must emit for speculation to win: its cost."""
    return line.cost(width)


def widening_pays(line: Line, extra_emitted: float, speedup: float) -> bool:
    """Whether one more position pays.

    Speed-up is emitted over cost, so it grows iff the extra emitted tokens per verify exceed
    the slope times the speed-up reached so far.
    """
    return extra_emitted > line.b * speedup


def implied_emitted(acceptance: float, width: int) -> float:
    """Tokens per verify if every round runs at a width: the bonus and the accepted drafts."""
    return 1 + acceptance * (width - 1)


def spread_percent(samples: Sequence[float]) -> float:
    """``100 (max - min) / median`` of the samples of one cell.

    Raises
    ------
    ConfigError
        No sample, or one that is not positive.
    """
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        raise ConfigError(f"a spread needs positive samples, got {list(samples)}")
    return 100 * (max(samples) - min(samples)) / statistics.median(samples)
