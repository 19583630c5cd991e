"""Shared by all benchmarks: the choice of BLAS before MLX, and timing beside a reference."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel.hardware.blas import choose

choose()
sys.path.append(str(Path(__file__).parents[1]))  # tests/support, behind an installed package

from benchmarks import reference  # noqa: E402
from benchmarks.beside import measure_beside  # noqa: E402

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what belongs to the regression suite, and what needs the demo checkpoint."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "measure" in names or "count_into" in names:
            item.add_marker(pytest.mark.regression)
        if "demo" in names:
            item.add_marker(pytest.mark.demo)


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Callable[..., Any]:
    """`measure_beside` of this benchmark: target, reference, and what it takes by name."""
    return functools.partial(measure_beside, benchmark)


@pytest.fixture
def count_into(benchmark: BenchmarkFixture) -> Callable[[Callable[[], dict[str, int]]], Any]:
    """Run something that counts, once; its counters go where ratios go."""

    def count(target: Callable[[], dict[str, int]]) -> dict[str, int]:
        counters: dict[str, int] = benchmark.pedantic(target, rounds=1)
        benchmark.extra_info["counters"] = counters
        return counters

    return count


@pytest.fixture(scope="session")
def loop() -> reference.Reference:
    """Reference for what runs on the host."""
    return reference.loop()


@pytest.fixture(scope="session")
def product() -> reference.Reference:
    """Reference for what runs on MLX."""
    return reference.product()
