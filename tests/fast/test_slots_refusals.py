"""What `SlotTable` refuses, and that a refused call changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlxcel._fast import SlotTable

RUNNING_SLOT, FINISHED_SLOT, DRAINING_SLOT, FREE_SLOT = range(4)
ROUND = 1  # the oldest unsettled of `table`
ROWS = 3


def packed(rows: int = ROWS, columns: int = 4, dtype: Any = np.uint32) -> np.ndarray:
    """A block in which every draft holds."""
    return np.ones((2, rows, columns), dtype)


@pytest.fixture
def table() -> SlotTable:
    """A slot in each state, and two rounds in flight."""
    table = SlotTable(4, 4, max_stops=2, rounds=2)
    table.admit(10, 100, 4, (7,))
    table.admit(10, 100, 4, (1,))
    table.admit(10, 100, 4, ())
    table.plan_round(1)
    table.plan_round(4)
    table.settle(0, packed())
    table.release(DRAINING_SLOT)
    table.plan_round(3)
    return table


def everything(table: SlotTable) -> tuple[Any, ...]:
    """All that can be read from a table."""
    rounds = []
    for number in range(5):
        try:
            rounds.append(
                [
                    list(table.round_slots(number)),
                    list(table.round_widths(number)),
                    list(table.lengths(number)),
                    list(table.upper_lengths(number)),
                ]
            )
        except KeyError:
            rounds.append([])
    return (
        [table.stats(slot) for slot in range(table.slots)],
        rounds,
        [list(table.count), list(table.accepted), list(table.finish)],
        (table.admitted, table.released, table.live, table.unsettled),
    )


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


Call = Callable[[SlotTable], object]
REFUSED: list[tuple[str, type[Exception], Call]] = [
    ("admit length -1", ValueError, lambda t: t.admit(-1, 1, 1, ())),
    ("admit budget 0", ValueError, lambda t: t.admit(0, 0, 1, ())),
    ("admit width 0", ValueError, lambda t: t.admit(0, 1, 0, ())),
    ("admit width too large", ValueError, lambda t: t.admit(0, 1, 5, ())),
    ("admit too many stops", ValueError, lambda t: t.admit(0, 1, 1, (1, 2, 3))),
    ("admit stop -1", ValueError, lambda t: t.admit(0, 1, 1, (-1,))),
    ("admit stop 2**32", ValueError, lambda t: t.admit(0, 1, 1, (2**32,))),
    ("admit huge stop", ValueError, lambda t: t.admit(0, 1, 1, (2**90,))),
    ("admit stop text", TypeError, lambda t: t.admit(0, 1, 1, "1")),
    ("admit stop float", TypeError, lambda t: t.admit(0, 1, 1, (1.0,))),
    ("admit stop bool", TypeError, lambda t: t.admit(0, 1, 1, (True,))),
    ("admit stops None", TypeError, lambda t: t.admit(0, 1, 1, None)),
    ("admit length bool", TypeError, lambda t: t.admit(False, 1, 1, ())),
    ("admit budget float", TypeError, lambda t: t.admit(0, 1.0, 1, ())),
    ("admit width None", TypeError, lambda t: t.admit(0, 1, None, ())),
    ("admit past int32", ValueError, lambda t: t.admit(2**30, 2**30, 1, ())),
    ("set_width 0", ValueError, lambda t: t.set_width(RUNNING_SLOT, 0)),
    ("set_width too large", ValueError, lambda t: t.set_width(RUNNING_SLOT, 5)),
    ("set_width bool", TypeError, lambda t: t.set_width(RUNNING_SLOT, True)),
    ("set_width finished", ValueError, lambda t: t.set_width(FINISHED_SLOT, 1)),
    ("set_width draining", ValueError, lambda t: t.set_width(DRAINING_SLOT, 1)),
    ("set_width free", ValueError, lambda t: t.set_width(FREE_SLOT, 1)),
    ("set_width no slot", IndexError, lambda t: t.set_width(4, 1)),
    ("release draining", ValueError, lambda t: t.release(DRAINING_SLOT)),
    ("release free", ValueError, lambda t: t.release(FREE_SLOT)),
    ("release no slot", IndexError, lambda t: t.release(4)),
    ("release slot -1", IndexError, lambda t: t.release(-1)),
    ("release float", TypeError, lambda t: t.release(0.0)),
    ("stats no slot", IndexError, lambda t: t.stats(4)),
    ("upper_length no slot", IndexError, lambda t: t.upper_length(-1)),
    ("plan cap 0", ValueError, lambda t: t.plan_round(0)),
    ("plan cap None", TypeError, lambda t: t.plan_round(None)),
    ("plan huge cap", OverflowError, lambda t: t.plan_round(2**90)),
    ("plan full ring", RuntimeError, lambda t: t.plan_round(4)),
    ("round_slots settled", KeyError, lambda t: t.round_slots(0)),
    ("round_slots unknown", KeyError, lambda t: t.round_slots(3)),
    ("round_widths -1", KeyError, lambda t: t.round_widths(-1)),
    ("lengths unknown", KeyError, lambda t: t.lengths(3)),
    ("upper_lengths unknown", KeyError, lambda t: t.upper_lengths(0)),
    ("narrow unknown round", KeyError, lambda t: t.narrow(3, int32(1, 1, 1))),
    ("narrow too few", ValueError, lambda t: t.narrow(ROUND, int32(1, 1))),
    ("narrow too many", ValueError, lambda t: t.narrow(ROUND, int32(1, 1, 1, 1))),
    ("narrow none", ValueError, lambda t: t.narrow(ROUND, int32())),
    ("narrow to 0", ValueError, lambda t: t.narrow(ROUND, int32(1, 0, 1))),
    ("narrow wider", ValueError, lambda t: t.narrow(ROUND, int32(1, 1, 5))),
    ("narrow dtype", ValueError, lambda t: t.narrow(ROUND, np.ones(3, np.int64))),
    ("narrow uint32", ValueError, lambda t: t.narrow(ROUND, np.ones(3, np.uint32))),
    ("narrow stride", ValueError, lambda t: t.narrow(ROUND, np.ones(6, np.int32)[::2])),
    ("narrow None", TypeError, lambda t: t.narrow(ROUND, None)),
    ("narrow list", TypeError, lambda t: t.narrow(ROUND, [1, 1, 1])),
    ("settle settled round", KeyError, lambda t: t.settle(0, packed())),
    ("settle unknown round", KeyError, lambda t: t.settle(3, packed())),
    ("settle round -1", KeyError, lambda t: t.settle(-1, packed())),
    ("settle out of order", ValueError, lambda t: t.settle(ROUND + 1, packed())),
    ("settle int32", ValueError, lambda t: t.settle(ROUND, packed(dtype=np.int32))),
    ("settle uint64", ValueError, lambda t: t.settle(ROUND, packed(dtype=np.uint64))),
    ("settle float", ValueError, lambda t: t.settle(ROUND, packed(dtype=np.float32))),
    ("settle row stride", ValueError, lambda t: t.settle(ROUND, packed(2 * ROWS)[:, ::2])),
    ("settle column stride", ValueError, lambda t: t.settle(ROUND, packed(ROWS, 8)[..., ::2])),
    ("settle transposed", ValueError, lambda t: t.settle(ROUND, packed(4, ROWS).mT)),
    ("settle 2 dimensions", ValueError, lambda t: t.settle(ROUND, packed()[0])),
    ("settle 3 planes", ValueError, lambda t: t.settle(ROUND, np.ones((3, 3, 4), np.uint32))),
    ("settle 1 plane", ValueError, lambda t: t.settle(ROUND, packed()[:1])),
    ("settle too few rows", ValueError, lambda t: t.settle(ROUND, packed(ROWS - 1))),
    ("settle no rows", ValueError, lambda t: t.settle(ROUND, packed(0))),
    ("settle too narrow", ValueError, lambda t: t.settle(ROUND, packed(ROWS, 3))),
    ("settle width 0", ValueError, lambda t: t.settle(ROUND, packed(ROWS, 0))),
    ("settle None", TypeError, lambda t: t.settle(ROUND, None)),
    ("settle list", TypeError, lambda t: t.settle(ROUND, packed().tolist())),
]


@pytest.mark.parametrize(
    ("error", "call"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused_and_unchanged(table: SlotTable, error: type[Exception], call: Call) -> None:
    before = everything(table)
    with pytest.raises(error):
        call(table)
    assert everything(table) == before
    assert table.settle(ROUND, packed()) == 4


def test_no_free_slot() -> None:
    table = SlotTable(2, 1)
    table.admit(0, 1, 1, ())
    table.admit(0, 1, 1, ())
    before = everything(table)
    with pytest.raises(RuntimeError, match="no free slot"):
        table.admit(0, 1, 1, ())
    assert everything(table) == before


def test_stops_that_raise_half_way(table: SlotTable) -> None:
    def stops() -> Any:
        yield 1
        raise LookupError

    before = everything(table)
    with pytest.raises(LookupError):
        table.admit(0, 1, 1, stops())
    assert everything(table) == before


def test_stops_that_take_the_last_slot_meanwhile() -> None:
    table = SlotTable(1, 1)

    def stops() -> Any:
        table.admit(5, 5, 1, ())
        yield 1

    with pytest.raises(RuntimeError):
        table.admit(0, 1, 1, stops())
    assert table.stats(0)["length"] == 5
    assert table.admitted == table.live == 1


@pytest.mark.parametrize(
    "sizes",
    [(0, 1), (1, 0), (-1, 4), (2**20, 4), (1, 2**20), (1, 1, -1), (1, 1, 0, 0), (1, 1, 0, 2**20)],
)
def test_sizes_out_of_range(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        SlotTable(*sizes)


@pytest.mark.parametrize("sizes", [(True, 1), (1.0, 1), ("1", 1), (1, None)])
def test_sizes_of_the_wrong_type(sizes: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        SlotTable(*sizes)


def test_cannot_be_made_without_its_arrays(table: SlotTable) -> None:
    with pytest.raises(TypeError):
        SlotTable.__new__(SlotTable)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        copy.copy(table)


def test_extremes_are_taken() -> None:
    table = SlotTable(1, 1, max_stops=0, rounds=1)
    table.admit(0, 1, 1, ())
    assert table.settle(table.plan_round(1), packed(1, 1)) == 1
    assert table.stats(0)["proposed"] == []
    table = SlotTable(1, 2, max_stops=1)
    table.admit(0, np.int64(4), np.uint8(2), (2**32 - 1,))
    block = np.full((2, 1, 2), 2**32 - 1, np.uint32)
    assert table.settle(table.plan_round(2), block) == 1
    assert table.finish[0] == 1
