"""Exact counters per case; `python -m benchmarks.regress` holds them against the baseline."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.counter_cases import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.benchmark(group="counters")
def test_counters(count_into: Any, name: str) -> None:
    counted = count_into(CASES[name])
    assert counted["nodes"] > 0
    assert counted["reads"] > 0
