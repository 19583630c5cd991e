"""Histograms: bucket edges, quantiles, refusals."""

from __future__ import annotations

import random

import pytest

from mlxcel.decide.histogram import SECONDS, Histogram
from mlxcel.errors import ConfigError


def test_an_observation_belongs_to_the_bucket_it_is_the_bound_of() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.snapshot()["sum"] == 14.0


def test_quantiles_of_many() -> None:
    rng, histogram = random.Random(1), Histogram()
    values = sorted(rng.expovariate(5.0) for _ in range(4000))
    for value in values:
        histogram.observe(value)
    for share in (0.5, 0.95):
        true = values[int(share * len(values))]
        found = histogram.quantile(share)
        assert found is not None
        below = max(bound for bound in (0.0, *SECONDS) if bound < true)
        above = min(bound for bound in SECONDS if bound >= true)
        assert below <= found <= above
    assert sum(histogram.counts) == histogram.count == 4000


def test_times_counts_as_often() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.5, 4)
    assert (histogram.count, histogram.total) == (4, 6.0)
    assert histogram.quantile(0.5) == pytest.approx(1.5)


def test_beyond_the_last_bound_and_before_the_first() -> None:
    histogram = Histogram((1.0,))
    assert histogram.quantile(0.5) is None
    histogram.observe(7.0)
    assert histogram.quantile(0.5) == 1.0


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bad_bounds(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        Histogram(bounds)
