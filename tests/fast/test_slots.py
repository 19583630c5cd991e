"""`SlotTable` against its oracle: exhaustive for small blocks, then random walks."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from mlxcel import _fast
from mlxcel._fast import DRAINING, FINISHED, FREE, RUNNING, SlotTable
from tests.oracle import slots as oracle
from tests.oracle.slots import SlotOracle, settle_row

ALPHABET = range(3)
STOPS = [(), (0,), (1, 2), (7,)]


def every_block(width: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], np.ndarray]:
    """All pairs of drafts and choices of a width, and the packed array of them."""
    pairs = list(
        itertools.product(
            itertools.product(ALPHABET, repeat=width - 1), itertools.product(ALPHABET, repeat=width)
        )
    )
    drafts = [pair[0] for pair in pairs]
    choices = [pair[1] for pair in pairs]
    packed = np.full((2, len(pairs), width), 9, np.uint32)
    packed[0, :, 1:] = np.array(drafts, np.uint32).reshape(len(pairs), width - 1)
    packed[1] = choices
    return drafts, choices, packed


def test_constants_equal_the_oracle() -> None:
    names = [name for name in _fast.__all__ if name.isupper()]
    assert len(names) == 7
    for name in names:
        assert getattr(_fast, name) == getattr(oracle, name)


@pytest.mark.parametrize("width", range(1, 6))
def test_every_block_every_budget_every_stop_set(width: int) -> None:
    drafts, choices, packed = every_block(width)
    rows = len(drafts)
    for stops, budget in itertools.product(STOPS, range(1, width + 2)):
        table = SlotTable(rows, width)
        for _ in range(rows):
            table.admit(100, budget, width, stops)
        number = table.plan_round(width)
        planned = min(width, budget)
        assert set(table.round_widths(number)) == {planned}
        total = table.settle(number, packed)
        known = frozenset(stops)
        expected = [
            settle_row(draft[: planned - 1], choice, budget, known)
            for draft, choice in zip(drafts, choices, strict=True)
        ]
        found = list(zip(table.count, table.accepted, table.finish, strict=True))
        assert found == expected
        assert total == sum(count for count, _, _ in expected)


@pytest.mark.parametrize("width", range(1, 5))
def test_every_block_and_the_state_it_leaves(width: int) -> None:
    drafts, _choices, packed = every_block(width)
    rows = len(drafts)
    nested = packed.tolist()
    for stops, budget in itertools.product(STOPS, (1, 2, 9)):
        table, plain = SlotTable(rows, width), SlotOracle(rows, width)
        plain.table = [
            oracle.Slot(width, RUNNING, 5, budget, width=width, stops=frozenset(stops))
            for _ in range(rows)
        ]
        for _ in range(rows):
            table.admit(5, budget, width, stops)
        assert table.settle(table.plan_round(width), packed) == plain.settle(
            plain.plan_round(width), nested
        )
        for slot in range(rows):
            assert table.stats(slot) == plain.stats(slot)


def assert_equal(table: SlotTable, plain: SlotOracle) -> None:
    """Everything that can be read from both is equal."""
    assert [table.stats(slot) for slot in range(table.slots)] == [
        plain.stats(slot) for slot in range(table.slots)
    ]
    assert (table.admitted, table.released, table.live) == (
        plain.admitted,
        plain.released,
        plain.live,
    )
    assert table.admitted - table.released == table.live
    assert table.unsettled == len(plain.unsettled)
    for number in plain.unsettled:
        assert table.round_slots(number).tolist() == plain.round_slots(number)
        assert table.round_widths(number).tolist() == plain.round_widths(number)
        assert table.lengths(number).tolist() == plain.lengths(number)
        assert table.upper_lengths(number).tolist() == plain.upper_lengths(number)
    for slot in range(table.slots):
        assert table.upper_length(slot) == plain.upper_length(slot)
    rows = len(plain.count)
    assert table.count[:rows].tolist() == plain.count
    assert table.accepted[:rows].tolist() == plain.accepted
    assert table.finish[:rows].tolist() == plain.finish


class Walk:
    """The same random operations on both tables."""

    def __init__(self, seed: int, slots: int, max_width: int, rounds: int) -> None:
        self.random = random.Random(seed)
        self.table = SlotTable(slots, max_width, 4, rounds)
        self.plain = SlotOracle(slots, max_width, 4, rounds)

    def both(self, name: str, *arguments: object) -> None:
        """Call a method of both; the results or the kinds of error are equal."""
        outcomes = []
        for each in (self.table, self.plain):
            try:
                outcomes.append(getattr(each, name)(*arguments))
            except (RuntimeError, ValueError, KeyError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1], (name, arguments)

    def admit(self) -> None:
        draw = self.random
        stops = [draw.randrange(4) for _ in range(draw.choice((0, 0, 1, 4)))]
        width = draw.randint(1, self.table.max_width)
        self.both("admit", draw.randrange(1000), draw.choice((1, 2, 5, 1000)), width, stops)

    def set_width(self) -> None:
        slot = self.random.randrange(self.table.slots)
        self.both("set_width", slot, self.random.randint(1, self.table.max_width))

    def plan(self) -> None:
        self.both("plan_round", self.random.randint(1, self.table.max_width + 1))

    def narrow(self) -> None:
        if not self.plain.unsettled:
            return
        number = self.random.choice(list(self.plain.unsettled))
        widths = [self.random.randint(1, width) for width in self.plain.round_widths(number)]
        self.table.narrow(number, np.array(widths, np.int32))
        self.plain.narrow(number, widths)

    def settle(self) -> None:
        if not self.plain.unsettled:
            return
        number = min(self.plain.unsettled)
        planned = self.plain.round_widths(number)
        columns = max(planned) + self.random.randrange(3)
        rows = len(planned) + self.random.randrange(3)
        generator = np.random.default_rng(self.random.randrange(2**32))
        packed = generator.integers(0, 4, (2, rows, columns), dtype=np.uint32)
        packed[0, :, 1:] = np.where(
            generator.random((rows, columns - 1)) < 0.8, packed[1, :, :-1], packed[0, :, 1:]
        )
        packed.flags.writeable = False
        assert self.table.settle(number, packed) == self.plain.settle(number, packed.tolist())

    def release(self) -> None:
        self.both("release", self.random.randrange(self.table.slots))

    def finish(self) -> None:
        """Release everything and settle what is in flight: no slot may be left."""
        for slot in range(self.table.slots):
            self.both("release", slot)
        assert self.table.plan_round(1) == self.plain.plan_round(1) == -1
        while self.plain.unsettled:
            self.settle()
            assert_equal(self.table, self.plain)
        assert self.table.live == 0
        assert self.table.admitted == self.table.released
        states = {self.table.stats(slot)["state"] for slot in range(self.table.slots)}
        assert states == {FREE}


@pytest.mark.parametrize("seed", range(60))
def test_random_walk(seed: int) -> None:
    shapes = [(1, 1, 1), (3, 4, 2), (8, 8, 4), (17, 5, 7)]
    walk = Walk(seed, *shapes[seed % len(shapes)])
    steps = [walk.admit, walk.set_width, walk.plan, walk.narrow, walk.settle, walk.release]
    weights = [5, 1, 8, 2, 6, 2]
    for step in walk.random.choices(steps, weights, k=400):
        step()
        assert_equal(walk.table, walk.plain)
    walk.finish()


def test_many_rows() -> None:
    walk = Walk(99, 300, 6, 4)
    for _ in range(300):
        walk.admit()
    for step in (walk.plan, walk.plan, walk.narrow, walk.plan, walk.settle, walk.plan) * 3:
        step()
        walk.settle()
        walk.release()
        assert_equal(walk.table, walk.plain)
    walk.finish()


def block(*rows: tuple[list[int], list[int]]) -> np.ndarray:
    """Packed array of rows, each its verify block and its choices."""
    return np.array([[row[0] for row in rows], [row[1] for row in rows]], np.uint32)


def test_one_round_by_hand() -> None:
    table = SlotTable(4, 4)
    for budget, stops in ((10, ()), (10, (6,)), (3, ()), (3, (8,))):
        table.admit(20, budget, 4, stops)
    number = table.plan_round(4)
    assert table.round_slots(number).tolist() == [0, 1, 2, 3]
    assert table.round_widths(number).tolist() == [4, 4, 3, 3]
    assert table.upper_lengths(number).tolist() == [24, 24, 23, 23]
    same = ([5, 6, 7, 8], [6, 7, 8, 9])
    wrong = ([5, 6, 0, 8], [6, 7, 8, 9])
    assert table.settle(number, block(wrong, same, same, same)) == 2 + 1 + 3 + 3
    assert table.count.tolist() == [2, 1, 3, 3]
    assert table.accepted.tolist() == [1, 3, 2, 2]
    # A stop that takes the last of the budget is a stop.
    assert table.finish.tolist() == [0, _fast.FINISH_STOP, _fast.FINISH_LENGTH, _fast.FINISH_STOP]
    assert [table.stats(slot)["length"] for slot in range(4)] == [22, 24, 23, 23]
    assert table.stats(0)["proposed"] == [1, 1, 1]
    assert table.stats(0)["accepted"] == [1, 0, 0]
    assert table.stats(1)["proposed"] == [1, 0, 0]
    assert table.stats(1)["accepted"] == [1, 0, 0]
    assert table.stats(2)["state"] == FINISHED


def test_rounds_in_flight_never_outrun_the_budget() -> None:
    table = SlotTable(1, 4, rounds=8)
    table.admit(0, 3, 4, ())
    widths = [table.round_widths(table.plan_round(8)).tolist() for _ in range(3)]
    assert widths == [[3], [2], [1]]
    assert table.plan_round(8) == -1
    assert table.upper_length(0) == 6


def test_cancel_in_flight_drains_and_then_frees() -> None:
    table = SlotTable(2, 3)
    slot = table.admit(10, 50, 3, ())
    first, second = table.plan_round(3), table.plan_round(3)
    table.release(slot)
    assert table.stats(slot)["state"] == DRAINING
    assert table.admit(7, 50, 3, ()) == 1  # the draining slot is not given away
    packed = block(([1, 1, 1], [1, 1, 1]))
    assert table.settle(first, packed) == 0
    assert (table.live, table.released) == (2, 0)
    assert table.settle(second, packed) == 0
    assert (table.live, table.released) == (1, 1)
    assert table.stats(slot)["emitted"] == 0
    assert table.admit(3, 5, 1, ()) == slot
    assert table.stats(slot)["length"] == 3


def test_a_finished_slot_emits_nothing_more() -> None:
    table = SlotTable(1, 2)
    table.admit(0, 50, 2, (1,))
    first, second = table.plan_round(2), table.plan_round(2)
    packed = block(([0, 1], [1, 1]))
    assert table.settle(first, packed) == 1
    before = table.stats(0)
    assert table.settle(second, packed) == 0
    assert (table.count[0], table.accepted[0], table.finish[0]) == (0, 0, 0)
    assert table.stats(0) == {**before, "in_flight": 0, "ahead": 0}
    table.release(0)
    assert table.live == 0


def test_views_are_read_only_int32() -> None:
    table = SlotTable(2, 2)
    table.admit(0, 5, 2, ())
    number = table.plan_round(2)
    views = [
        table.count,
        table.accepted,
        table.finish,
        table.round_slots(number),
        table.round_widths(number),
        table.lengths(number),
        table.upper_lengths(number),
    ]
    for view in views:
        assert isinstance(view, memoryview)
        assert view.readonly
        assert np.asarray(view).dtype == np.int32
    table.narrow(number, table.round_widths(number))
