"""The exact rank test against scipy, and the interval of the ratio against the test itself."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from scipy.stats import mannwhitneyu

from mlxcel.decide.rank_test import compare_samples, smallest_p, u_counts, u_test
from mlxcel.errors import ConfigError


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (4, 3), (5, 5)])
def test_counts_are_those_of_all_orders(sizes):
    first, second = sizes
    counts = [0] * (first * second + 1)
    for places in combinations(range(first + second), first):
        counts[sum(places) - first * (first - 1) // 2] += 1
    assert u_counts(first, second) == counts


@pytest.mark.parametrize("sizes", [(1, 2), (3, 3), (4, 9), (6, 6), (8, 7), (20, 20)])
def test_p_is_that_of_scipy(sizes):
    draw = random.Random(sum(sizes))
    for shift in (0.0, 0.5, 1.5, 9.0):
        first = [draw.gauss(10, 1) for _ in range(sizes[0])]
        second = [draw.gauss(10 + shift, 1) for _ in range(sizes[1])]
        expected = mannwhitneyu(first, second, alternative="two-sided", method="exact").pvalue
        assert u_test(first, second) == pytest.approx(expected, rel=1e-12)
        assert u_test(second, first) == u_test(first, second)


def test_the_smallest_p_is_that_of_two_samples_without_overlap():
    assert u_test([1, 2, 3], [4, 5, 6]) == smallest_p(3, 3) == pytest.approx(0.1)
    assert smallest_p(6, 6) == pytest.approx(2 / 924)
    assert smallest_p(1, 1) == 1


def test_ties_never_make_a_difference_surer():
    """Each equal pair may be read either way; the p is at least the larger reading's mean rank."""
    tied = u_test([1, 2, 3, 4], [4, 5, 6, 7])
    assert u_test([1, 2, 3, 3.9], [4, 5, 6, 7]) < tied
    assert tied >= u_test([1, 2, 3, 4.1], [4, 5, 6, 7])
    assert u_test([1, 1, 1], [1, 1, 1]) == 1


def test_the_ratio_is_that_of_the_medians_and_its_interval_that_of_the_test():
    draw = random.Random(4)
    for _ in range(50):
        first = [draw.lognormvariate(3, 0.02) for _ in range(6)]
        second = [draw.lognormvariate(3.02, 0.02) for _ in range(6)]
        found = compare_samples(first, second)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.ratio <= found.high
        # Scaling the first by a factor inside leaves no difference, by one outside it does.
        for factor, inside in (
            (found.low * 1.0001, True), (found.high * 0.9999, True),
            (found.low * 0.9999, False), (found.high * 1.0001, False),
        ):  # fmt: skip
            p = u_test([value * factor for value in first], second)
            assert (p > 0.05) is inside


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = random.Random(11)
    hits = 0
    for _ in range(400):
        first = [draw.lognormvariate(0, 0.05) for _ in range(6)]
        second = [1.1 * draw.lognormvariate(0, 0.05) for _ in range(6)]
        found = compare_samples(first, second)
        hits += (found.low or 0) <= 1.1 <= (found.high or 0)
    assert hits >= 370  # 95 % are 380; four standard deviations below are 363


def test_too_few_samples_have_no_interval():
    found = compare_samples([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])
    assert (found.low, found.high) == (None, None)
    assert found.ratio == pytest.approx(2.1 / 1.1)


@pytest.mark.parametrize(
    ("first", "second"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0]), ([0.0], [1.0])]
)
def test_bad_samples(first, second):
    with pytest.raises(ConfigError, match="needs"):
        compare_samples(first, second)


def test_a_bad_confidence():
    with pytest.raises(ConfigError, match=r"got 1\.0"):
        compare_samples([1.0], [1.0], confidence=1.0)
