"""The price of invariant numerics from paired times."""

from __future__ import annotations

import pytest

from mlxcel.decide.price import price_of
from mlxcel.errors import ConfigError


def test_ratios_are_taken_run_by_run() -> None:
    """A machine that slows down in between changes times, not the ratio."""
    found = price_of("classic step", [1.0, 2.0, 4.0], [1.2, 2.6, 5.2])
    assert (found.ratio, found.low, found.high) == pytest.approx((1.3, 1.2, 1.3))
    assert (found.fast, found.invariant, found.runs) == (2.0, 2.6, 3)
    said = found.describe()
    assert said.startswith("classic step: 1.30 (1.20 to 1.30) times the fast one")
    assert "2000.0 against 2600.0 ms, 3 runs" in said


@pytest.mark.parametrize(
    ("fast", "invariant"), [([], []), ([1.0], []), ([1.0], [0.0]), ([-1.0], [1.0])]
)
def test_what_is_no_pair_of_times_is_refused(fast: list[float], invariant: list[float]) -> None:
    with pytest.raises(ConfigError, match="price of a step"):
        price_of("a step", fast, invariant)
