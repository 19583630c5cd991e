"""Figures of a measured row by hand, and every limit that makes a row unpublishable."""

from __future__ import annotations

import random
import statistics

import pytest

from mlxcel.decide.bench_figures import derive, drift, interval_of, rounded
from mlxcel.decide.bench_limits import DRIFT_LIMIT_PERCENT
from tests.decide.raw import OTHER, PASSED, raw_row


def figures(raw, width=4, guards=PASSED):
    return derive(raw, requested_width=width, guards=guards)


def test_figures_by_hand():
    blocks = [(10.0, 20.0, 20.2, 10.1), (10.0, 19.9, 20.1, 9.9), (10.2, 20.0, 20.3, 10.1)]
    found = figures(raw_row(blocks))
    assert found.classic_samples == (10.0, 10.1, 10.0, 9.9, 10.2, 10.1)
    assert found.speculative_samples == (20.0, 20.2, 19.9, 20.1, 20.0, 20.3)
    assert (found.n, found.classic_tok_s, found.speculative_tok_s) == (6, 10.05, 20.05)
    assert found.speedup == rounded(20.05 / 10.05)
    assert found.spread_percent == rounded(100 * (10.2 - 9.9) / 10.05)  # the larger of both arms
    assert (found.accepted, found.proposed, found.acceptance) == (144, 288, 0.5)
    assert found.emitted_per_verify == 2.5
    assert found.round_cost == rounded(2.5 * 10.05 / 20.05)
    assert found.effective_width == 4
    assert found.exact
    assert found.publishable
    assert found.reasons == ()
    low, high = found.interval
    assert low < found.speedup < high
    assert found == figures(raw_row(blocks)), "the same samples, the same figures"


def test_figures_have_six_digits():
    assert rounded(1.23456789) == 1.23457
    assert rounded(123456789.0) == 123457000.0
    assert rounded(0.0) == 0.0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (raw_row([(10, 20, 20, 10)] * 2), "too few repetitions: 2 of 3 blocks"),
        (
            raw_row([(10, 20, 20, 10), (10, 20, 20.9, 10), (10, 20, 20, 10)]),
            "spread of the speculative arm 4.5 % is above 4 %",
        ),
        (raw_row(changes={2: {"ids_sha256": OTHER}}), "in 1 of 6 runs"),
        (raw_row(changes={13: {"ids_sha256": OTHER}}), "classic runs differ among themselves"),
        (raw_row(changes={3: {"profiling": True}}), "profiling window was not over in 1 runs"),
        (raw_row(null=(10, 10.5)), "null arm: the last classic run was +5.0 % against the first"),
        (raw_row(null=(10.3, 10.3)), "null arm: classic alone was +3.0 % against classic between"),
    ],
)
def test_what_makes_a_row_unpublishable(raw, reason):
    found = figures(raw)
    assert not found.publishable
    assert any(reason in each for each in found.reasons), found.reasons


def test_limits_are_not_broken_by_what_just_keeps_them():
    found = figures(raw_row([(10, 20, 20.7, 10), (10, 20, 20, 10), (10.3, 20, 20, 10)]))
    assert found.publishable, found.reasons


def test_a_width_that_did_not_run():
    found = figures(raw_row(), width=6)
    assert found.effective_width == 4
    assert found.reasons == ("the widest round had width 4, below the 6 asked for",)


def test_unequal_ids_are_not_exact():
    assert not figures(raw_row(changes={2: {"ids_sha256": OTHER}})).exact
    assert not figures(raw_row(changes={13: {"ids_sha256": OTHER}})).exact


@pytest.mark.parametrize(
    ("guards", "reason"),
    [
        ({}, "not guarded: the quiet gate before the runs did not run"),
        ({**PASSED, "contention": {"ran": False}}, "not guarded: the contention watch"),
        (
            {**PASSED, "contention": {"ran": True, "passed": False, "reason": "backupd, 600 %"}},
            "the contention watch tripped: backupd, 600 %",
        ),
        ({**PASSED, "quiet": {"ran": True}}, "the quiet gate before the runs tripped: no reason"),
    ],
)
def test_guards_speak_against_a_row(guards, reason):
    found = figures(raw_row(), guards=guards)
    assert not found.publishable
    assert any(each.startswith(reason) for each in found.reasons), found.reasons


def test_nothing_drafted_has_no_acceptance():
    plain = {"proposed": 0, "accepted": 0, "accepted_by_position": (), "rounds": 40,
             "width_min": 1, "width_max": 1}  # fmt: skip
    found = figures(raw_row(changes=dict.fromkeys((2, 3, 6, 7, 10, 11), plain)))
    assert (found.accepted, found.proposed, found.acceptance) == (None, None, None)
    assert (found.emitted_per_verify, found.effective_width) == (1.0, 1)


def noisy(seed, noise, blocks=3, slower=lambda number: 0.0):
    """A row whose runs have relative noise, and get slower by a share."""
    draw = random.Random(seed)
    base = [10.0, *((10.0, 20.0, 20.0, 10.0) * blocks), 10.0]
    speeds = [
        speed * (1 + draw.gauss(0, noise)) / (1 + slower(number))
        for number, speed in enumerate(base)
    ]
    inner = speeds[1:-1]
    parts = [tuple(inner[at : at + 4]) for at in range(0, len(inner), 4)]
    return raw_row(parts, (speeds[0], speeds[-1]))


def drifted(raw):
    return any("drifted" in reason for reason in figures(raw).reasons)


def test_a_steady_drift_of_1_2_percent_per_block_is_caught():
    per_block = [noisy(s, 0.003, slower=lambda n: 0.012 * ((n - 1) // 4)) for s in range(40)]
    assert all(drifted(raw) for raw in per_block)
    # The spread limit alone would have let some of them through.
    assert any(figures(raw).spread_percent < 4 for raw in per_block)


def test_a_drift_of_1_2_percent_over_the_row_is_caught_on_a_quiet_host():
    rows = [noisy(s, 0.0005, slower=lambda n: 0.012 * n / 13) for s in range(40)]
    assert all(drifted(raw) for raw in rows)


def test_noise_alone_is_seldom_called_a_drift():
    rows = [noisy(s, 0.006) for s in range(100)]
    assert sum(map(drifted, rows)) <= 5  # by chance alone, 3 errors at 6 degrees of freedom: 2.4 %


def test_drift_has_sign_and_size():
    faster = drift(noisy(0, 0.0, slower=lambda n: -0.02 * n / 13).classic())
    assert faster.percent == pytest.approx(2.0, abs=0.1)
    assert faster.found
    still = drift(noisy(0, 0.0).classic())
    assert abs(still.percent) < 1e-6 < DRIFT_LIMIT_PERCENT
    assert not still.found


def test_the_interval_covers_the_ratio_as_often_as_it_says():
    """Against 100 made-up rows of 9 blocks; small samples make it a little too narrow."""
    inside = 0
    for seed in range(100):
        low, high = interval_of(noisy(seed, 0.02, blocks=9))
        inside += low <= 2.0 <= high
    assert 86 <= inside <= 99


def test_the_interval_narrows_with_the_blocks():
    def width(blocks):
        rows = [interval_of(noisy(seed, 0.02, blocks=blocks)) for seed in range(8)]
        return statistics.median(high - low for low, high in rows)

    assert width(40) < 0.75 * width(6)


def test_of_one_block_the_interval_is_its_ratio():
    assert interval_of(raw_row([(10, 20, 22, 10)])) == (2.1, 2.1)
