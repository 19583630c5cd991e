"""Cost of the compiled core per round, beside its plain Python definition.

Each target is repeatable: a round is planned and settled with a budget that never runs out.
`settle` cannot run without a plan, so its target is both; `plan_round` alone is measured by
filling a ring of plans that `setup` has emptied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from mlxcel._fast import NgramIndex, SlotTable

sys.path.append(str(Path(__file__).parents[1]))
from tests.oracle.ngram import propose
from tests.oracle.slots import SlotOracle

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROWS = [1, 8, 32, 256]
WIDTH = 4
STOPS = (2, 3)
PLANS = 256


Table = TypeVar("Table", SlotTable, SlotOracle)


def filled(kind: type[Table], rows: int) -> Table:
    """A table in which every slot runs and none ever ends."""
    table = kind(rows, WIDTH, 32, PLANS)
    for _ in range(rows):
        table.admit(100, 2**30, WIDTH, STOPS)
    return table


def choices(rows: int) -> npt.NDArray[np.uint32]:
    """Blocks and choices over two tokens that are no stop ids: half of the drafts hold."""
    return np.random.default_rng(rows).integers(0, 2, (2, rows, WIDTH), dtype=np.uint32)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="plan and settle")
def test_settle(benchmark: BenchmarkFixture, rows: int) -> None:
    table = filled(SlotTable, rows)
    packed = choices(rows)

    def target() -> int:
        return table.settle(table.plan_round(WIDTH), packed)

    assert benchmark(target) >= rows


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="plan and settle")
def test_settle_oracle(benchmark: BenchmarkFixture, rows: int) -> None:
    table = filled(SlotOracle, rows)
    packed = choices(rows).tolist()

    def target() -> int:
        # The oracle keeps every width it has seen; without this it would grow for ever.
        for slot in table.table:
            for kept in (slot.widths, slot.proposed, slot.accepted):
                kept.clear()
        return table.settle(table.plan_round(WIDTH), packed)

    assert benchmark(target) >= rows


def fill_and_empty(
    plan: Callable[[int], int], settle: Callable[[int], int]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """One function that fills the ring of plans, and one that settles all it holds."""
    planned = 0
    settled = 0

    def fill() -> None:
        nonlocal planned
        for _ in range(PLANS):
            planned = plan(WIDTH) + 1

    def empty() -> None:
        nonlocal settled
        while settled < planned:
            settle(settled)
            settled += 1

    return fill, empty


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="plan_round x 256")
def test_plan_round(benchmark: BenchmarkFixture, rows: int) -> None:
    table = filled(SlotTable, rows)
    packed = choices(rows)
    fill, empty = fill_and_empty(table.plan_round, lambda number: table.settle(number, packed))
    benchmark.pedantic(fill, setup=empty, rounds=20, warmup_rounds=2)
    assert table.unsettled == PLANS


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="plan_round x 256")
def test_plan_round_oracle(benchmark: BenchmarkFixture, rows: int) -> None:
    table = filled(SlotOracle, rows)
    packed = choices(rows).tolist()
    fill, empty = fill_and_empty(table.plan_round, lambda number: table.settle(number, packed))
    benchmark.pedantic(fill, setup=empty, rounds=9, warmup_rounds=1)
    assert len(table.unsettled) == PLANS


def history(rows: int) -> npt.NDArray[np.uint32]:
    """For each row 2000 tokens of which the last 4 occurred before, in the middle."""
    tokens = np.random.default_rng(rows).integers(0, 30000, (rows, 2000), dtype=np.uint32)
    tokens[:, -4:] = tokens[:, 1000:1004]
    return tokens


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="ngram propose")
def test_ngram_propose(benchmark: BenchmarkFixture, rows: int) -> None:
    index = NgramIndex(rows)
    slots = np.arange(rows, dtype=np.int32)
    index.extend_round(slots, np.full(rows, 2000, np.int32), history(rows))
    want = np.full(rows, WIDTH - 1, np.int32)
    out = np.zeros((rows, WIDTH - 1), np.uint32)
    counts = np.zeros(rows, np.int32)
    assert benchmark(index.propose, slots, want, out, counts) == rows * (WIDTH - 1)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.benchmark(group="ngram propose")
def test_ngram_propose_oracle(benchmark: BenchmarkFixture, rows: int) -> None:
    histories = history(rows).tolist()

    def target() -> int:
        return sum(len(propose(tokens, WIDTH - 1)) for tokens in histories)

    assert benchmark(target) == rows * (WIDTH - 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.benchmark(group="ngram extend_round")
def test_ngram_extend_round(benchmark: BenchmarkFixture, rows: int) -> None:
    slots = np.arange(rows, dtype=np.int32)
    counts = np.full(rows, WIDTH, np.int32)
    tokens = np.random.default_rng(rows).integers(0, 300, (500, rows, WIDTH), dtype=np.uint32)
    blocks = list(tokens)

    def start() -> tuple[tuple[NgramIndex], dict[str, object]]:
        return (NgramIndex(rows),), {}

    def target(index: NgramIndex) -> None:
        for block in blocks:
            index.extend_round(slots, counts, block)

    benchmark.pedantic(target, setup=start, rounds=9, warmup_rounds=1)
    benchmark.extra_info["rounds_per_call"] = len(blocks)
