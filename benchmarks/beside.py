"""One benchmark of pytest-benchmark, interleaved with a reference kernel: R T R T ... R."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from benchmarks.reference import Reference

__all__ = ["SAMPLES", "measure_beside", "ratios_of"]

SAMPLES = 21
WARMUPS = 2


def measure_beside(
    benchmark: BenchmarkFixture,
    target: Callable[[], Any],
    reference: Reference,
    *,
    prepare: Callable[[], Any] | None = None,
    samples: int = SAMPLES,
) -> Any:
    """Time a target; ``extra_info`` gets its ratios to the reference around each sample.

    Parameters
    ----------
    benchmark : BenchmarkFixture
        Unused so far. Where timing is disabled, the target runs once.
    target : callable
        Should last milliseconds, and end in ``mx.eval`` where it is MLX's work.
    reference : Reference
        Runs before each sample and after the last.
    prepare : callable, optional
        Runs before that, without a clock.
    samples : int
        Timed calls, after `WARMUPS` others.

    Returns
    -------
    object
        What the target gave last.

    Raises
    ------
    ValueError
        Benchmark and reference have different clocks.
    """
    around: list[float] = []

    def setup() -> None:
        if prepare is not None:
            prepare()
        around.append(reference())

    last = benchmark.pedantic(target, setup=setup, rounds=samples, warmup_rounds=WARMUPS)
    if benchmark.disabled:
        return last
    around.append(reference())
    clock = benchmark.stats.options["timer"]
    if clock is not reference.clock:
        raise ValueError(
            f"{benchmark.fullname} is timed by {clock}, its reference by {reference.clock}: "
            "mark it with pytest.mark.benchmark(timer=...)"
        )
    seconds = list(benchmark.stats.stats.data)
    around = around[-len(seconds) - 1 :]  # without those of the warm-up
    benchmark.extra_info["reference"] = reference.name
    benchmark.extra_info["seconds"] = seconds
    benchmark.extra_info["reference_seconds"] = around
    benchmark.extra_info["ratios"] = ratios_of(seconds, around)
    return last


def ratios_of(seconds: list[float], around: list[float]) -> list[float]:
    """Each time over the mean of the reference's times before and after it.

    Parameters
    ----------
    seconds : list of float
        n times.
    around : list of float
        n + 1 times of the reference.
    """
    pairs = zip(seconds, itertools.pairwise(around), strict=True)
    return [2.0 * each / (before + after) for each, (before, after) in pairs]
