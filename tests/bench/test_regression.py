"""Comparing with a baseline, on made-up samples."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.beside import measure_beside, ratios_of
from benchmarks.regression import (
    Finding,
    Measurement,
    compare,
    compare_counters,
    differences,
    suspects,
    trouble,
)


def made(middle: float, *, seed: int = 0, runs: int = 3, spread: float = 0.01) -> Measurement:
    """Runs of 21 normal samples around a median."""
    rng = random.Random(seed)
    ratios = [[rng.gauss(middle, spread * middle) for _ in range(21)] for _ in range(runs)]
    seconds = [[5e-3 * ratio for ratio in run] for run in ratios]
    return Measurement(reference="a loop", seconds=seconds, ratios=ratios)


def only(findings: Sequence[Finding]) -> Finding:
    [found] = findings
    return found


def verdict(old: Measurement, new: Measurement) -> str:
    return only(compare({"x": old}, {"x": new})).kind


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (1.10, "REGRESSED"),
        (1.07, "REGRESSED"),
        (1.04, "same"),  # significant, and too small to matter
        (1.00, "same"),
        (0.97, "same"),
        (0.90, "faster"),
    ],
)
def test_verdicts_on_clear_samples(change: float, kind: str) -> None:
    old, new = made(2.0), made(2.0 * change, seed=1)
    found = only(compare({"x": old}, {"x": new}))
    assert (found.kind, found.fails) == (kind, kind == "REGRESSED")


def test_the_effect_is_told() -> None:
    old = Measurement(reference="r", seconds=[[0.01] * 9], ratios=[[2.0] * 9])
    new = replace(old, ratios=[[2.5] * 9])
    assert "2 -> 2.5 (+25.0 %, p " in only(compare({"x": old}, {"x": new})).message


def test_a_large_effect_within_the_noise_is_not_called_a_regression() -> None:
    noisy = [[1.0, 3.0, 1.2, 2.8, 1.1, 2.9, 2.0]]
    old = Measurement(reference="r", seconds=noisy, ratios=noisy)
    new = replace(old, ratios=[[ratio + 0.2 for ratio in noisy[0]]])
    assert verdict(old, new) == "slower?"


def test_one_slow_process_of_three_is_no_regression() -> None:
    """As pooled samples it would be one: two of three runs would pull the median."""
    old, slow, normal = made(1.0), made(1.12, seed=2, runs=2), made(1.0, seed=3, runs=1)
    new = slow.with_run_of(normal)
    assert new.median > 1.05 * old.median
    assert verdict(old, new) == "slower?"
    assert verdict(old, made(1.12, seed=2)) == "REGRESSED"


def test_no_false_alarms_and_no_misses_in_two_hundred_tries() -> None:
    """With a spread of 2 % an equal one is never beyond the limit, and 10 % always is."""
    old = made(1.0, spread=0.02)
    for seed in range(1, 101):
        assert verdict(old, made(1.0, seed=seed, spread=0.02)) == "same"
        assert verdict(old, made(1.1, seed=seed, spread=0.02)) == "REGRESSED"


def test_missing_renamed_new_and_another_reference() -> None:
    old = made(1.0)
    renamed = compare({"old": old}, {"renamed": old})
    assert [(each.name, each.kind, each.fails) for each in renamed] == [
        ("old", "MISSING", True), ("renamed", "new", False)
    ]  # fmt: skip
    other = only(compare({"x": old}, {"x": replace(old, reference="another loop")}))
    assert (other.kind, other.fails) == ("CHANGED", True)
    assert "'another loop'" in other.message
    assert "'a loop'" in other.message


def test_suspects_are_measured_again_and_others_are_not() -> None:
    old = {name: made(1.0) for name in ("slow", "same", "gone", "fast")}
    new = {"slow": made(1.2), "same": made(1.0, seed=4), "fast": made(0.8), "new": made(1.0)}
    assert suspects(compare(old, new)) == ["slow"]


COUNTED = {"classic": {"reads": 8, "nodes": 400}, "width 4": {"reads": 8, "nodes": 500}}


def test_equal_counters_give_no_finding() -> None:
    assert compare_counters(COUNTED, COUNTED) == []


@pytest.mark.parametrize(
    ("case", "counters", "name", "kind"),
    [
        ("classic", {"reads": 16, "nodes": 400}, "classic: reads", "ROSE"),
        ("classic", {"reads": 8, "nodes": 401}, "classic: nodes", "ROSE"),
        ("width 4", {"reads": 8, "nodes": 499}, "width 4: nodes", "fell"),
        ("width 4", {"reads": 8}, "width 4: nodes", "CHANGED"),
        ("classic", {"reads": 8, "nodes": 400, "copies": 0}, "classic: copies", "CHANGED"),
        ("width 5", {"reads": 8, "nodes": 1}, "width 5", "new"),
    ],
)
def test_counters(case: str, counters: dict[str, int], name: str, kind: str) -> None:
    found = only(compare_counters(COUNTED, COUNTED | {case: counters}))
    assert (found.name, found.kind) == (name, kind)
    assert found.fails == (kind in ("ROSE", "CHANGED"))


def test_a_case_that_is_not_counted_any_more_fails() -> None:
    found = only(compare_counters(COUNTED, {"classic": COUNTED["classic"]}))
    assert (found.name, found.kind, found.fails) == ("width 4", "MISSING", True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"seconds": [[5e-3, 4e-4]]}, "0.40 ms"),
        ({"ratios": [[1.0, 1.01, 0.99, 1.0, 3.0]]}, ""),  # an outlier moves no median
        ({"ratios": [[1.0] * 9, [0.8, 0.95, 1.0, 1.05, 1.2]]}, "10 % of the median apart"),
        ({"ratios": [[1.0] * 9, [0.8, 0.96, 1.0, 1.05, 1.2]]}, ""),
    ],
)
def test_what_a_baseline_must_not_be(change: dict[str, list[list[float]]], said: str) -> None:
    found = trouble(replace(made(1.0), **change))
    assert said in found
    assert bool(found) == bool(said)


def test_fingerprints_differ_by_name() -> None:
    old = {"chip": "A", "mlx": "1", "gone": "x"}
    assert differences(old, old) == []
    assert differences(old, {"chip": "A", "mlx": "2", "extra": "y"}) == [
        "mlx: 1 in the baseline, 2 here",
        "gone: x in the baseline, not recorded here",
        "extra: not recorded in the baseline, y here",
    ]


def test_ratios_are_to_the_reference_on_both_sides() -> None:
    assert ratios_of([6.0, 8.0], [1.0, 3.0, 5.0]) == [3.0, 2.0]
    with pytest.raises(ValueError, match="zip"):
        ratios_of([6.0, 8.0], [1.0, 3.0])


class FakeStats:
    def __init__(self) -> None:
        self.data: list[float] = []
        self.stats = self
        self.options = {"timer": time.perf_counter}


class FakeBenchmark:
    """Does what `pedantic` of pytest-benchmark does, with a clock that counts calls."""

    disabled, fullname = False, "a benchmark"

    def __init__(self) -> None:
        self.stats, self.extra_info = FakeStats(), {}

    def pedantic(self, target, setup, rounds, warmup_rounds):
        for number in range(warmup_rounds + rounds):
            setup()
            value = target()
            if number >= warmup_rounds:
                self.stats.data.append(float(value))
        return value


def test_the_reference_runs_before_each_sample_and_after_the_last() -> None:
    order: list[str] = []

    def reference() -> float:
        order.append("R")
        return float(order.count("R"))

    def target() -> float:
        order.append("T")
        return 10.0

    bench = FakeBenchmark()
    timed = Timed(reference)
    assert measure_beside(bench, target, timed, prepare=lambda: order.append("p"), samples=2) == 10
    assert "".join(order) == "pRT" * 4 + "R"
    # Two warm-ups: the samples lie between the references 3, 4 and 5.
    assert bench.extra_info["reference_seconds"] == [3.0, 4.0, 5.0]
    assert bench.extra_info["ratios"] == [10 / 3.5, 10 / 4.5]
    assert bench.extra_info["reference"] == "counting"


class Timed:
    """A reference with a clock of our own."""

    name, clock = "counting", time.perf_counter

    def __init__(self, clock) -> None:
        self._clock = clock

    def __call__(self) -> float:
        return self._clock()


def test_another_clock_than_the_references_is_refused() -> None:
    bench = FakeBenchmark()
    bench.stats.options["timer"] = time.thread_time
    with pytest.raises(ValueError, match=r"a benchmark is timed by .*thread_time"):
        measure_beside(bench, lambda: 1.0, Timed(lambda: 1.0))


def test_a_disabled_benchmark_runs_once_and_records_nothing() -> None:
    class Disabled(FakeBenchmark):
        disabled = True

        def pedantic(self, target, setup, rounds, warmup_rounds):
            setup()
            return target()

    bench, calls = Disabled(), []
    assert measure_beside(bench, lambda: len(calls), Timed(lambda: calls.append(1))) == 1
    assert bench.extra_info == {}
