"""The protocol on simulated hosts: who runs when, what is discarded, what is found."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mlxcel.bench.protocol import Plan, block_order, measure
from mlxcel.decide.bench_limits import MAX_WARMUPS
from mlxcel.errors import ConfigError
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import measured_record

CODE = {"code": "write"}


def cells(host, plan, **more):
    return list(measure(host, plan, clock=host.clock, sleep=host.sleep, **more))


def test_one_width_runs_classic_speculative_speculative_classic():
    host = SimulatedHost()
    [cell] = cells(host, Plan(prompts=CODE, widths=(4,), tokens=41, blocks=2))
    warm, abba = [None, None, 4, 4], [None, 4, 4, None]
    assert host.asked == [*warm, None, *abba, *abba, None]
    assert (cell.prompt, cell.width) == ("code", 4)
    assert [run.arm for run in cell.raw.in_order()][:5] == [
        "classic", "classic", "speculative", "speculative", "classic",
    ]  # fmt: skip
    assert cell.note == "warm-up discarded: 2 classic, 2 speculative"
    assert cell.first_difference is None


def test_a_sweep_begins_with_another_width_in_each_block():
    widths = (2, 3, 5)
    assert block_order(widths, 0) == (None, 2, 3, 5, 5, 3, 2, None)
    assert block_order(widths, 1) == (None, 3, 5, 2, 2, 5, 3, None)
    assert block_order(widths, 3) == block_order(widths, 0)
    host = SimulatedHost()
    found = cells(host, Plan(prompts=CODE, widths=widths, tokens=41, blocks=3))
    assert [cell.width for cell in found] == [2, 3, 5]
    assert len({cell.raw.null for cell in found}) == 1
    ends = [[(block[0], block[3]) for block in cell.raw.pairs] for cell in found]
    assert ends[0] == ends[1] == ends[2], "the widths of a block share its classic runs"
    for cell in found:
        assert {run.width_max for run in cell.raw.of("speculative")} == {cell.width}


def test_every_prompt_has_its_own_warm_up_and_null_arm():
    host = SimulatedHost()
    plan = Plan(prompts={"a": "a", "b": "b"}, widths=(4,), tokens=41, blocks=1)
    a, b = cells(host, plan)
    assert (a.prompt, b.prompt) == ("a", "b")
    assert a.raw.null[1].started_s < b.raw.null[0].started_s
    assert len(host.asked) == 2 * (4 + 1 + 4 + 1)


def test_starts_are_counted_from_the_beginning_and_pauses_lie_between_runs():
    host = SimulatedHost()
    [cell] = cells(host, Plan(prompts=CODE, widths=(4,), tokens=41, blocks=1, pause=2.0))
    assert host.slept == 2.0 * len(host.asked)
    runs = list(cell.raw.in_order())
    for before, after in pairwise(runs):
        assert after.started_s - before.started_s - before.seconds == pytest.approx(2.05)


def test_a_cold_first_run_is_discarded():
    host = SimulatedHost(factor=lambda number: 20.0 if number == 0 else 1.0)
    record = measured_record(host, Plan(prompts=CODE, widths=(4,), tokens=41))
    [row] = record.rows
    assert host.asked[:4] == [None, None, None, 4], "one more run, until two agree"
    assert row.publishable, row.reasons
    assert row.note == "warm-up discarded: 3 classic, 2 speculative"
    assert row.spread_percent is not None
    assert row.spread_percent < 0.001


def test_a_cold_run_inside_a_block_is_kept_and_spoils_the_row():
    host = SimulatedHost(factor=lambda number: 20.0 if number == 6 else 1.0)
    [row] = measured_record(host, Plan(prompts=CODE, widths=(4,), tokens=41)).rows
    assert row.publishable is False
    assert row.reasons is not None
    assert "spread of the speculative arm" in row.reasons[0]


def test_the_warm_up_has_an_end():
    host = SimulatedHost(factor=lambda number: 1.0 + 0.5 * (number % 2))
    said: list[str] = []
    [cell] = cells(host, Plan(prompts=CODE, widths=(4,), tokens=41, blocks=1), say=said.append)
    assert host.asked[: 2 * MAX_WARMUPS] == [None] * MAX_WARMUPS + [4] * MAX_WARMUPS
    assert cell.note == "warm-up discarded: 8 (not steady) classic, 8 (not steady) speculative"
    assert said[0] == "code: classic is not steady after 8 warm-up runs"


def test_the_profiling_window_is_left_behind():
    host = SimulatedHost(profiling=5)
    [cell] = cells(host, Plan(prompts=CODE, widths=(4,), tokens=41, blocks=1))
    assert cell.note == "warm-up discarded: 2 classic, 6 speculative"
    assert not any(run.profiling for run in cell.raw.in_order())


def test_a_profiling_window_that_does_not_end_is_named():
    [row] = measured_record(
        SimulatedHost(profiling=100), Plan(prompts=CODE, widths=(4,), tokens=41)
    ).rows
    assert row.reasons == ("the policy's profiling window was not over in 6 runs",)


def test_the_first_difference_is_named_with_its_margin():
    same = tuple(range(41))
    host = SimulatedHost(answers={6: (*same[:17], 99, *same[18:])})
    record = measured_record(host, Plan(prompts=CODE, widths=(4,), tokens=41))
    [row] = record.rows
    assert row.exact is False
    assert row.first_difference is not None
    assert (row.first_difference.position, row.first_difference.margin) == (17, 0.25)
    assert host.margins == [17]
    assert row.reasons == ("token ids differ from the classic ones in 1 of 6 runs",)
    assert record.exactness == "inexact-wide"


def test_an_answer_that_ends_early_differs_where_it_ends():
    host = SimulatedHost(answers={6: tuple(range(30))})
    [cell] = cells(host, Plan(prompts=CODE, widths=(4,), tokens=41))
    assert cell.first_difference is not None
    assert (cell.first_difference.position, cell.first_difference.margin) == (30, None)


def test_a_drifting_host_is_found_out():
    """1.2 % slower with every block; a block has four runs."""

    def factor(number: float) -> float:
        return 1.012 ** max((number - 5) // 4, 0)

    host = SimulatedHost(noise=0.002, factor=factor)
    [row] = measured_record(host, Plan(prompts=CODE, widths=(4,), tokens=41)).rows
    assert row.publishable is False
    assert any("classic speed drifted by -" in reason for reason in row.reasons or ())


def test_a_width_that_does_not_run_is_reported():
    [row] = measured_record(
        SimulatedHost(narrow=3), Plan(prompts=CODE, widths=(6,), tokens=41)
    ).rows
    assert (row.requested_width, row.effective_width) == (6, 3)
    assert row.reasons == ("the widest round had width 3, below the 6 asked for",)


def test_a_noisy_host_keeps_its_rows_but_may_not_publish_them():
    record = measured_record(SimulatedHost(noise=0.05), Plan(prompts=CODE, widths=(2, 4)))
    assert len(record.rows) == 2
    assert all(row.publishable is False and row.raw is not None for row in record.rows)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"prompts": {}}, "prompts"),
        ({"widths": ()}, "widths must be different"),
        ({"widths": (1,)}, "at least 2"),
        ({"widths": (4, 4)}, "different"),
        ({"tokens": 1}, "tokens must be at least 2"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"pause": -1.0}, "pause must be at least 0"),
    ],
)
def test_a_plan_that_cannot_be(values, reason):
    with pytest.raises(ConfigError, match=reason):
        Plan(**{"prompts": CODE, "widths": (4,)} | values)
