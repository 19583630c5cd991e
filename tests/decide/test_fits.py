"""Round cost over width: least squares, break-even, what a wider block must bring."""

from __future__ import annotations

import itertools
import math

import pytest

from mlxcel.decide.fits import (
    Line,
    break_even,
    fit_line,
    implied_emitted,
    least_squares,
    spread_percent,
    widening_pays,
)
from mlxcel.errors import ConfigError


def test_points_on_a_line():
    line = fit_line([(k, 0.83 + 0.17 * k) for k in (2, 3, 4, 5, 6, 8)])
    assert (line.a, line.b, line.points) == (pytest.approx(0.83), pytest.approx(0.17), 6)
    assert line.largest_residual == pytest.approx(0, abs=1e-12)
    assert break_even(line, 4) == line.cost(4) == pytest.approx(1.51)


def test_worked_by_hand():
    """Points (1, 1), (2, 3), (3, 2): slope 1/2, intercept 1, residuals -1/2, 1, -1/2."""
    line = fit_line([(1, 1), (2, 3), (3, 2)])
    assert (line.a, line.b, line.largest_residual) == (1, 0.5, 1)


def test_no_other_line_has_a_smaller_square():
    points = [(2, 1.2), (3, 1.1), (5, 1.9), (8, 2.4)]
    best = fit_line(points)

    def square(a, b):
        return sum((y - a - b * x) ** 2 for x, y in points)

    for da, db in itertools.product((-0.01, 0, 0.01), repeat=2):
        assert square(best.a, best.b) <= square(best.a + da, best.b + db) + 1e-12


def test_a_published_sweep_is_fitted():
    """M3 Ultra 31B, widths 2 to 8: 0.83 + 0.170 K, largest residual 0.064."""
    line = fit_line([(2, 1.16), (3, 1.32), (4, 1.51), (5, 1.68), (6, 1.91), (8, 2.14)])
    assert (round(line.a, 2), round(line.b, 3)) == (0.83, 0.169)
    assert line.largest_residual < 0.07


def test_a_whole_weight_is_so_many_points():
    points = [(2, 1.2, 3), (3, 1.1, 1), (5, 1.9, 2), (8, 2.4, 0)]
    line = fit_line([(x, y) for x, y, weight in points for _ in range(weight)])
    assert least_squares(points) == pytest.approx((line.a, line.b))


@pytest.mark.parametrize(
    "points", [[], [(2, 1, 1)], [(2, 1.0, 1), (2, 1.2, 1)], [(2, 1, 1), (3, 1, 0)], [(2, 1, 0)]]
)
def test_fewer_than_two_widths_with_a_weight_have_no_line(points):
    assert least_squares(points) is None


@pytest.mark.parametrize("points", [[], [(1, 1)], [(2, 1), (2, 3)]])
def test_a_line_needs_two_widths(points):
    with pytest.raises(ConfigError, match="two different widths"):
        fit_line(points)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_line_needs_finite_points(bad):
    with pytest.raises(ConfigError, match="finite"):
        fit_line([(1, 1), (2, bad)])


@pytest.mark.parametrize("per_position", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("slope", [0.05, 0.17, 0.35, 0.8])
def test_widening_pays_exactly_when_the_speedup_grows(per_position, slope):
    line = Line(a=0.9, b=slope, largest_residual=0, points=2)

    def emitted(k):
        return sum(per_position**i for i in range(k))

    for k in range(1, 12):
        now, then = (emitted(n) / line.cost(n) for n in (k, k + 1))
        assert widening_pays(line, emitted(k + 1) - emitted(k), now) == (then > now)


@pytest.mark.parametrize(
    ("acceptance", "width", "emitted"), [(0, 4, 1), (1, 4, 4), (0.882, 4, 3.646), (0.5, 1, 1)]
)
def test_emitted_tokens_at_full_width(acceptance, width, emitted):
    assert implied_emitted(acceptance, width) == pytest.approx(emitted)


@pytest.mark.parametrize(
    ("samples", "spread"), [([5], 0), ([50.8, 53.4, 55.2], 8.24), ([10, 10, 11, 12], 19.05)]
)
def test_spread(samples, spread):
    assert spread_percent(samples) == pytest.approx(spread, abs=0.01)


@pytest.mark.parametrize("samples", [[], [1, 0], [1, -2], [math.nan]])
def test_a_spread_needs_positive_samples(samples):
    with pytest.raises(ConfigError, match="positive"):
        spread_percent(samples)
