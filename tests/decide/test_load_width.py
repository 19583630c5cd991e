"""Widths of rounds of several rows: what is found on hosts of every kind, and what it costs."""

from __future__ import annotations

import json
import random

import pytest

from mlxcel.decide.load_table import LoadTable, bucket_of
from mlxcel.decide.load_tokens import LoadTokens, round_tokens
from mlxcel.decide.load_trial import WAIT
from mlxcel.decide.load_width import LoadWidths
from mlxcel.errors import LoadError
from tests.support.simulated_load import LoadHost, drive_load, filled

ROWS = (2, 4, 8, 16)
SEEDS = (0, 1)
FULL = [4.0, 4.0 * 1.7, 4.0 * 2.2, 4.0 * 2.5, 4.0 * 2.7, 4.0 * 2.8, 4.0 * 2.9, 4.0 * 3.0]


def fresh(**options: object) -> LoadWidths:
    return LoadWidths(8, 4, **options)  # type: ignore[arg-type]


# -- whole hosts -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_batch_that_fills_the_host_is_parked(rows: int, seed: int) -> None:
    """Four tokens fill it: two rows have room for width 2, more have none."""
    done = drive_load(fresh(), LoadHost(filled(4), rows, seed=seed), 3000)
    assert done.found[rows] == (2 if rows == 2 else 1)
    assert done.best > 0.97
    assert done.classic > (1.5 if rows == 2 else 0.97)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_wide_host_speculates_at_any_number_of_rows(rows: int, seed: int) -> None:
    done = drive_load(fresh(), LoadHost(filled(1000, draft=0.02), rows, seed=seed), 3000)
    assert done.found[rows] >= 6
    assert done.best > 0.95
    assert done.classic > 2.6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_win_is_found_within_some_tens_of_rounds(seed: int) -> None:
    """Also from classic decode held, with what a width costs never measured."""
    host = LoadHost(filled(1000, draft=0.02), 4, seed=seed)
    assert drive_load(fresh(), host, 60).widths[-1] >= 6
    parked = fresh()
    parked.exclude(4, "a test")  # leaves nothing to begin with
    parked.allow(4)
    done = drive_load(parked, LoadHost(filled(8), 4, seed=seed), 80)
    assert done.widths[-1] in (2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_never_pays_costs_less_than_three_percent(seed: int) -> None:
    """Also where requests are short, and where row counts come and go."""
    for length in (10**9, 40):
        host = LoadHost(filled(1), 8, acceptance=0.01, seed=seed, length=length)
        assert drive_load(fresh(), host, 3000).classic > 0.97
    rng = random.Random(seed)
    counts = [rng.randrange(2, 20) for _ in range(1500)]
    host = LoadHost(filled(1), lambda n: counts[n // 4], acceptance=0.05, seed=seed)
    assert drive_load(fresh(), host, 6000, skip=2000).classic > 0.97


@pytest.mark.parametrize("every", [3, 5, 11])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_number_of_rows_changes_all_the_time(seed: int, every: int) -> None:
    host = LoadHost(filled(8), lambda n: 2 + (n // every) * 5 % 7, seed=seed)
    done = drive_load(fresh(), host, 6000, skip=1500)
    assert done.best > 0.96
    assert done.found[2] > 2
    assert done.found[8] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_collapse_of_acceptance_parks_and_a_recovery_wakes(seed: int) -> None:
    falls = LoadHost(filled(16), 4, acceptance=lambda n, _: 0.8 if n < 1000 else 0.02, seed=seed)
    assert drive_load(fresh(), falls, 1000).classic > 1.5
    widths = fresh()
    falls.number = 0
    done = drive_load(widths, falls, 4000, skip=1100)
    assert done.classic > 0.97
    rises = LoadHost(filled(16), 4, acceptance=lambda n, _: 0.02 if n < 1000 else 0.8, seed=seed)
    done = drive_load(fresh(), rises, 4000, skip=2000)
    assert done.best > 0.95
    assert done.found[4] in (3, 4, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_drift_cold_rounds_and_outliers_do_not_mislead(seed: int) -> None:
    steps = LoadHost(filled(8), 4, drift=lambda n: 1 + 0.6 * (n // 300 % 2), seed=seed)
    assert drive_load(fresh(), steps, 3000).best > 0.97
    pauses = LoadHost(filled(8), 4, drift=lambda n: 60.0 if n % 97 == 0 else 1.0, seed=seed)
    assert drive_load(fresh(), pauses, 3000, skip=200).best > 0.95
    cold = LoadHost(filled(8), 4, cold=2.0, seed=seed)
    assert drive_load(fresh(), cold, 3000, skip=200).best > 0.97


def test_rows_of_other_texts_change_the_width_at_once() -> None:
    """The seconds are known; who runs says what they bring."""
    widths = fresh()
    host = LoadHost(filled(8), 4, acceptance=0.8)
    drive_load(widths, host, 400)
    assert widths.held(4) == 2
    good, bad = round_tokens([[0.8] * 7] * 4, 0, 8), round_tokens([[0.01] * 7] * 4, 0, 8)
    assert widths.choose(4, good, joining=1) == 2
    assert widths.choose(4, bad, joining=1) == 1
    assert widths.choose(4, good, joining=1) == 2


# -- parts -----------------------------------------------------------------------------


def test_buckets() -> None:
    assert [bucket_of(rows) for rows in range(1, 9)] == list(range(1, 9))
    assert [bucket_of(r) for r in (9, 12, 13, 16, 17, 24, 25, 33, 256)] == [
        12, 12, 16, 16, 24, 24, 32, 48, 256,
    ]  # fmt: skip
    assert all(bucket_of(bucket_of(rows)) == bucket_of(rows) >= rows for rows in range(1, 300))


def test_tokens_of_a_round() -> None:
    assert round_tokens([[0.5, 0.5]], 2, 3) == (3.0, 3.5, 3.75)
    # A row that insists on width 2 drafts no more in a wider round.
    assert round_tokens([[0.5, 0.5], [1.0]], 0, 3) == (2.0, 3.5, 3.75)


def test_expected_tokens_follow_the_rows_and_new_rows_the_pairing() -> None:
    known = LoadTokens(4)
    good, bad = known.row(), known.row()
    for _ in range(60):
        known.observe(good, 4, 4)
        known.observe(bad, 4, 1)
        known.round_ended()
    assert known.of([good], [4], 0)[3] > 3.8
    assert known.of([bad], [4], 0)[3] < 1.08
    assert known.of([bad], [4], 3)[3] < 4.08
    assert 1.4 < known.of([known.row()], [4], 0)[1] < 1.6
    assert known.of([good], [4], 0) is known.of([good], [4], 0)
    known.stale([good])
    for _ in range(4):
        known.observe(good, 4, 1)
    assert known.of([good], [4], 0)[1] < 1.5


def test_a_cell_is_cold_once_and_clips_what_is_far_off() -> None:
    table = LoadTable()
    assert not table.observe(4, 2, 9.0)
    for _ in range(20):
        assert table.observe(4, 2, 1.0)
    table.observe(4, 2, 1000.0)
    assert 1.0 < table.seconds(4, 2) < 1.3
    for nothing in (0.0, -1.0, float("nan"), float("inf")):
        assert not table.observe(4, 2, nothing)


def test_estimates_come_from_the_nearest_neighbours() -> None:
    table = LoadTable()

    def known(rows: int, width: int, seconds: float) -> None:
        for _ in range(5):
            table.observe(rows, width, seconds)

    assert table.estimate(4, 3) == 0.0
    known(4, 1, 1.0)
    assert table.estimate(4, 3) == 0.0
    assert table.estimate(8, 1) == pytest.approx(1.0)
    known(4, 3, 2.0)
    assert table.estimate(4, 5) == pytest.approx(3.0)
    assert table.estimate(4, 2) == pytest.approx(1.5)
    known(8, 1, 3.0)
    assert table.estimate(8, 3) == pytest.approx(6.0, rel=0.1)  # in the proportion of 4 rows


def test_common_drift_moves_cells_that_do_not_run() -> None:
    table = LoadTable()
    for width, seconds in ((1, 1.0), (4, 2.0)):
        for _ in range(40):
            table.observe(4, width, seconds)
    for _ in range(80):
        table.observe(4, 4, 4.0)
    assert table.seconds(4, 1) == pytest.approx(2.0, rel=0.3)


def test_what_a_row_insists_on_is_the_least_and_wider_runs_only_if_measured_better() -> None:
    widths = fresh()
    assert widths.choose(4, FULL, 3, joining=0) == 3
    for width, seconds in ((3, 1.0), (6, 1.0), (8, 9.0)):
        for _ in range(6):
            widths.observe(4, width, seconds)
    assert widths.choose(4, FULL, 3, joining=0) == 6
    assert widths.choose(4, FULL, 7, joining=0) == 7
    assert widths.choose(4, [4.0] * 8, 3, joining=0) == 3  # the others do not speculate


def test_without_rows_that_speculate_rounds_are_classic() -> None:
    widths = fresh()
    for _ in range(100):
        assert widths.choose(3, [3.0] * 8, joining=0) == 1
        widths.observe(3, 1, 1.0)
    assert widths.held(3) == 1


def test_peek_says_what_choose_says_and_changes_nothing() -> None:
    widths = fresh()
    for number in range(300):
        seen = [widths.peek(4, FULL, joining=0) for _ in range(3)]
        chosen = widths.choose(4, FULL, joining=0)
        assert seen == [chosen] * 3
        widths.observe(4, chosen, 1.0 + chosen)
        if number % 7 == 0:
            beside_a_prompt = widths.peek(4, FULL, joining=1)
            assert beside_a_prompt == (widths.held(4) if number else 1)  # nothing is timed yet


def test_closed_widths_never_run() -> None:
    widths = fresh(open=(4,))
    widths.exclude(3, "rows differ")
    host = LoadHost(filled(8), 4)
    assert set(drive_load(widths, host, 500, arms=(1, 4)).widths) <= {1, 4}
    widths.allow(2)
    assert drive_load(widths, host, 2000).widths[-1] == 2
    widths.exclude(2, "rows differ")
    assert set(drive_load(widths, host, 500).widths) <= {1, 4}
    assert widths.snapshot()["excluded"] == {2: "rows differ", 3: "rows differ"}
    assert set(drive_load(fresh(open=()), host, 100).widths) == {1}


def test_a_trial_that_is_never_timed_ends() -> None:
    widths = fresh()
    for _ in range(5):
        assert widths.choose(4, FULL, joining=0) == 1
        widths.observe(4, 1, 1.0)
    ran = [widths.choose(4, FULL, joining=0) for _ in range(200)]
    assert 0 < ran.count(4) <= 30
    assert ran[-1] == 1


def test_what_waits_for_a_prompt_counts_against_drafting_beside_it() -> None:
    """Four rows gain by drafting; those that wait would gain more by running sooner."""
    cost = {(4, 1): 1.0, (4, 4): 1.8, (8, 1): 1.05, (8, 4): 3.0, (2, 1): 1.0, (2, 4): 1.1}
    widths = fresh()
    for (rows, width), seconds in cost.items():
        tokens = [0.5 * rows * (1 + w) for w in range(1, 9)]
        widths.choose(rows, tokens, joining=0)
        for _ in range(40):
            widths.observe(rows, width, seconds)
    four = [0.5 * 4 * (1 + w) for w in range(1, 9)]
    while widths.choose(4, four, joining=0) != 4 or widths.held(4) != 4:
        widths.observe(4, 1, 1.0)
    # 6 tokens more for 1.07 s more, toll included: 5.6 a second, against 8 / 1.05 with eight rows.
    assert widths.peek(4, four, joining=4) == 1
    # With five rows no more than 10 tokens come of 1.8 s: those of now are no dearer.
    assert widths.peek(4, four, joining=0) == 4
    two = [0.5 * 2 * (1 + w) for w in range(1, 9)]
    while widths.choose(2, two, joining=0) != 4 or widths.held(2) != 4:
        widths.observe(2, 1, 1.0)
    assert widths.peek(2, two, joining=2) == 4  # 3 tokens for a quarter of a second


def test_rows_are_prepared_where_speculation_is_held_or_about_to_be_tried() -> None:
    widths = fresh()
    assert widths.wants(4)
    drive_load(widths, LoadHost(filled(1), 4, acceptance=0.1), 3000)
    assert widths.held(4) == 1
    wanted = []
    for _ in range(1500):
        widths.choose(4, FULL[:1] * 8, joining=0)
        widths.observe(4, 1, 0.02 * 4)
        wanted.append(widths.wants(4))
    assert wanted[-1]
    assert not all(wanted)


# -- memory ----------------------------------------------------------------------------


def test_the_memory_outlives_a_process() -> None:
    widths = fresh()
    drive_load(widths, LoadHost(filled(8), 4), 1000)
    drive_load(widths, LoadHost(filled(8), 8), 1000)
    again = fresh()
    again.restore(widths.to_json("k"), "k")
    assert again.to_json("k") == widths.to_json("k")
    assert (again.held(4), again.held(8)) == (2, 1)
    done = drive_load(again, LoadHost(filled(8), 8, seed=9), 1000)
    assert done.classic > 0.97
    assert done.widths[: WAIT // 2] == [1] * (WAIT // 2)
    closed = fresh(open=(4,))
    closed.restore(widths.to_json("k"), "k")
    assert set(drive_load(closed, LoadHost(filled(8), 4), 300).widths) <= {1, 4}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99}, {"key": "other"}, {"rows": 3}, {"more": 1}, {"table": {}},
        {"rows": [{"rows": 1, "holder": 2, "wait": WAIT}]},
        {"table": {"speed": 0, "cells": [
            {"rows": 4, "width": 1, "cost": 1.0, "weight": 1.0, "rounds": 1}]}},
        {"table": {"speed": 1, "cells": [
            {"rows": 4, "width": 1, "cost": "x", "weight": 1.0, "rounds": 1}]}},
    ],
)  # fmt: skip
def test_a_bad_memory_changes_nothing(change: dict[str, object]) -> None:
    widths = fresh()
    drive_load(widths, LoadHost(filled(8), 4), 100)
    good = widths.to_json("k")
    with pytest.raises(LoadError):
        widths.restore(json.dumps(json.loads(good) | change), "k")
    assert widths.to_json("k") == good
    with pytest.raises(LoadError):
        widths.restore("{", "k")
