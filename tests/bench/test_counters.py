"""Exact counters of a round: as committed, and one more of anything is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks import baseline_store as store
from benchmarks.counter_cases import CASES, ROUNDS
from benchmarks.counting import Counting, Crossings, nodes
from benchmarks.regression import compare_counters
from mlxcel._fast import SlotTable
from mlxcel.engine.engine import Engine

WANTED, VERSIONS = store.read_counters(store.FOLDER)


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    return {name: count() for name, count in CASES.items()}


def test_no_counter_has_risen(counted: dict[str, dict[str, int]]) -> None:
    failed = [each for each in compare_counters(WANTED, counted) if each.fails]
    assert failed == [], f"counted with {VERSIONS}; make bench-counters if it has to be so"


def test_all_cases_have_a_baseline_and_counts_are_repeatable(
    counted: dict[str, dict[str, int]],
) -> None:
    assert WANTED.keys() == CASES.keys()
    for name in ("classic", "draft model, width 4"):
        assert CASES[name]() == counted[name]


def test_a_round_is_enqueued_once_and_read_once(counted: dict[str, dict[str, int]]) -> None:
    """The design's promise: one evaluation and one host sync per round."""
    for name, each in counted.items():
        if name != "prompt of 3 chunks":
            assert each["evaluations"] == 0, name
            assert each["async_evaluations"] == ROUNDS, name
            if "log-probabilities" not in name:
                assert each["reads"] == ROUNDS, name


Wrap = Callable[[Any, Any], Any]


def exchange(monkeypatch: pytest.MonkeyPatch, name: str, extra: Callable[[Engine], object]) -> None:
    """Let a method of the engine do something more, each time."""
    plain = getattr(Engine, name)

    def slower(self: Engine, *args: Any, **kwargs: Any) -> Any:
        extra(self)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Engine, name, slower)


@pytest.mark.parametrize(
    ("extra", "counter"),
    [
        (lambda engine: engine.batch.lengths.tolist(), "reads"),
        (lambda engine: np.array(engine.batch.lengths), "reads"),
        (lambda engine: np.asarray(engine.batch.lengths, copy=False), "reads"),
        (lambda engine: engine.batch.lengths[0].item(), "reads"),
        (lambda engine: int(engine.batch.lengths[0]), "reads"),
        (lambda engine: bool(engine.batch.lengths[0] > 1), "reads"),
        (lambda engine: mx.eval(engine.batch.lengths), "evaluations"),
        (lambda engine: mx.synchronize(), "evaluations"),
        (lambda engine: mx.async_eval(engine.batch.lengths), "async_evaluations"),
        (lambda engine: mx.async_eval(engine.batch.lengths + 1), "nodes"),
        (lambda engine: engine.scheduler.table.upper_length(0), "crossings"),
    ],
)
def test_one_more_per_round_is_seen(
    monkeypatch: pytest.MonkeyPatch, extra: Callable[[Engine], object], counter: str
) -> None:
    exchange(monkeypatch, "_launch_round", extra)
    got = CASES["classic"]()
    assert got[counter] >= WANTED["classic"][counter] + ROUNDS
    found = compare_counters({"classic": WANTED["classic"]}, {"classic": got})
    assert f"classic: {counter}" in [each.name for each in found if each.fails]


def test_nodes_are_operations_not_yet_run() -> None:
    one = mx.ones((3,))
    mx.eval(one)
    out = (one + one) * one
    assert nodes([out, {"again": out}]) == 2
    assert nodes(mx.split(out, 3)) == 3  # one split, whatever it gives
    mx.eval(out)
    assert nodes(out) == nodes([]) == 0


def test_everything_is_put_back() -> None:
    before = [mx.eval, mx.async_eval, np.array, mx.array.item, mx.array.__bool__]
    with Counting() as counting:
        assert mx.eval is not before[0]
        np.array(mx.ones((2,)))
        np.array([1, 2])  # none of MLX's
    assert [mx.eval, mx.async_eval, np.array, mx.array.item, mx.array.__bool__] == before
    assert counting.tally.reads == 1
    np.array(mx.ones((2,)))
    assert counting.tally.reads == 1


def test_crossings_count_calls_and_arrays_handed_over() -> None:
    with Counting() as counting:
        table: Any = Crossings(SlotTable(1, 2), counting.tally)
        table.admit(5, 10, 2, ())
        assert table.live == 1  # an attribute is no call
        number = table.plan_round(2)
        table.settle(number, mx.zeros((2, 1, 2), mx.uint32))
    assert counting.tally.crossings == 3
    assert counting.tally.reads == 1
