"""Processor time between two looks at the table of processes, and whose it is."""

from __future__ import annotations

import pytest

from mlxcel.decide.host_load import Load, Process, Snapshot, foreign_loads, own_tree
from mlxcel.errors import ConfigError

OWN = 100


def process(pid, name="p", parent=1, seconds=0.0, reaped=0.0, started="a"):
    return Process(
        pid=pid, parent=parent, name=name, started=started, stopped=False, seconds=seconds,
        reaped=reaped,
    )  # fmt: skip


def loads(before, after, span=10.0, own=(OWN,)):
    found = foreign_loads(Snapshot(5.0, tuple(before)), Snapshot(5.0 + span, tuple(after)), own)
    return [(load.name, load.pid, pytest.approx(load.percent)) for load in found]


def test_the_busiest_comes_first_and_idle_ones_are_left_out():
    before = [process(2, "a", seconds=7), process(3, "b", seconds=1), process(4, "c", seconds=9)]
    after = [process(2, "a", seconds=8), process(3, "b", seconds=11), process(4, "c", seconds=9)]
    assert loads(before, after) == [("b", 3, 100), ("a", 2, 10)]


def test_a_process_that_began_in_between_counts_whole():
    assert loads([], [process(2, seconds=3)]) == [("p", 2, 30)]


def test_another_process_under_the_same_number_is_another_one():
    before = [process(2, "old", seconds=50, started="a")]
    assert loads(before, [process(2, "new", seconds=51, started="b")]) == [("new", 2, 510)]
    # Without a start to tell them apart, less time than before shows it.
    before = [process(2, "old", seconds=50, started="")]
    assert loads(before, [process(2, "new", seconds=1, started="")]) == [("new", 2, 10)]


def test_short_lived_children_count_for_the_one_that_waited():
    """A build of compilers that each live for less than the time between two looks."""
    before = [process(2, "make", seconds=1, reaped=100)]
    after = [process(2, "make", seconds=1, reaped=109), process(9, "cc", parent=2, seconds=0.5)]
    assert loads(before, after) == [("make", 2, 90), ("cc", 9, 5)]


def test_a_child_that_was_seen_before_it_ended_is_not_counted_twice():
    before = [process(2, "make", reaped=100), process(9, "cc", parent=2, seconds=40, reaped=2)]
    after = [process(2, "make", reaped=100 + 42 + 3)]
    assert loads(before, after) == [("make", 2, 30)]


def test_a_wrapper_that_ends_with_its_program_hands_on_no_old_time():
    """Shell, timeout, program: the shell is charged with the last 2 s, not with all 42 s."""
    before = [
        process(2, "shell"), process(8, "timeout", parent=2, reaped=1),
        process(9, "program", parent=8, seconds=30, reaped=5),
        process(10, "worker", parent=9, seconds=4),
    ]  # fmt: skip
    after = [process(2, "shell", reaped=1 + 30 + 5 + 4 + 2)]
    assert loads(before, after) == [("shell", 2, 20)]


@pytest.mark.parametrize("own", [(OWN,), iter([OWN])])
def test_the_own_tree(own):
    tree = [
        process(1, parent=0), process(10, "shell", 1), process(20, "make", 10),
        process(OWN, "bench", 20), process(101, "engine", OWN), process(102, "worker", 101),
        process(21, "neighbour", 20), process(11, "editor", 10), process(12, "other", 1),
    ]  # fmt: skip
    assert own_tree(tree, own) == {1, 10, 20, OWN, 101, 102}


def test_the_own_tree_does_not_count_and_survives_its_members():
    before = [process(OWN, parent=20), process(101, "engine", OWN, seconds=5)]
    # The engine's child is an orphan now; what it used until then was ours.
    after = [process(OWN, parent=20, seconds=10, reaped=9), process(101, "engine", 1, seconds=15)]
    assert loads(before, after) == []


def test_a_named_process_of_another_tree_is_ours_with_its_children():
    before = [process(50, "engine"), process(51, "w", parent=50)]
    after = [process(50, "engine", seconds=9), process(51, "w", parent=50, seconds=9)]
    assert loads(before, after, own=(OWN, 50)) == []
    assert loads(before, after) == [("engine", 50, 90), ("w", 51, 90)]


def test_no_time_between_two_looks():
    with pytest.raises(ConfigError, match=r"no time passed .* 5\.0 s, 5\.0 s"):
        loads([], [], span=0)


def test_a_load_is_in_percent_of_one_core():
    [load] = foreign_loads(
        Snapshot(0.0, (process(2),)), Snapshot(2.0, (process(2, seconds=8),)), (OWN,)
    )
    assert load == Load("p", 2, 400.0)
