"""Fits carried to another host or pairing, by the rule of the founding prediction."""

from __future__ import annotations

import pytest

from mlxcel.decide.carried_prediction import predict
from mlxcel.decide.carry import carry, line_of
from mlxcel.decide.prediction import judge, parse_prediction, prediction_to_dict
from mlxcel.decide.readings import readings
from mlxcel.decide.record_json import parse_record
from mlxcel.errors import ConfigError
from mlxcel.evidence import load_records
from tests.decide.evidence import campaign, record, row

FOUNDING = load_records()
M1 = "Apple M1 Ultra"


def sweep(name, host, pairing, a, b, emitted=None, **changes):
    """A record whose round costs are exactly ``a + b K``."""
    rows = []
    for width in (2, 3, 4, 6):
        tokens = (emitted or (lambda k: 1 + 0.5 * (k - 1)))(width)
        rows.append(
            row(
                requested_width=width,
                speedup=tokens / (a + b * width),
                emitted_per_verify=tokens,
                acceptance=(tokens - 1) / (width - 1),
            )
        )
    return record(name, host, rows=rows, pairing=pairing, **changes)


SQUARE = (
    sweep("m3-p", "M3", "P", 0.8, 0.2),
    sweep("m3-q", "M3", "Q", 1.2, 0.1),
    sweep("m1-q", "M1", "Q", 1.5, 0.3),
)


def source(name, records=SQUARE):
    return next(item for item in records if item.id == name)


def made(records=SQUARE, start="m3-p", width=4, **how):
    carried = carry(records, source(start, records), **how)
    return predict(carried, records, width=width, made_on="2026-11-30", by="someone")


def test_the_founding_prediction_comes_out_as_it_was_made():
    """Near 3.6 classic steps and 0.82x to 1.11x, over the widths that were asked for."""
    start = source("m3ultra-31b-sweep-2026-08-20", FOUNDING)
    carried = carry(FOUNDING, start, chip=M1, widths="requested", through="Gemma 4 12B")
    assert carried.bridge.here.id == "m1ultra-12b-sweep-2026-08-19"
    assert carried.bridge.there.id == "m3ultra-12b-sweep-2026-08-19"
    assert carried.line.cost(4) == pytest.approx(3.6, abs=0.005)
    assert carried.line.largest_residual == 0.2
    cost, speedup = predict(
        carried, FOUNDING, width=4, made_on="2026-08-20", by="someone"
    ).quantities
    assert (cost.low, cost.high, cost.tolerance) == (3.597, 3.597, 0.2)
    assert speedup.low == pytest.approx(0.82, abs=0.005)
    assert speedup.high == pytest.approx(1.11, abs=0.005)


def test_over_the_widths_that_ran_the_same_rule_gives_another_cost():
    """Decision 5: 2.86 steps, since the sweeps' rounds were narrower than their labels."""
    start = source("m3ultra-31b-sweep-2026-08-20", FOUNDING)
    carried = carry(FOUNDING, start, chip=M1, through="Gemma 4 12B")
    assert carried.line.cost(4) == pytest.approx(2.86, abs=0.02)


def test_to_another_host():
    line = carry(SQUARE, source("m3-p"), chip=M1).line
    assert line.a == pytest.approx(0.8 * 1.5 / 1.2)
    assert line.b == pytest.approx(0.2 * 0.3 / 0.1)


def test_to_another_pairing():
    """Q is known on M3 and M1, P on M3: P on M1 again, from the other corner."""
    line = carry(SQUARE, source("m1-q"), pairing="P").line
    assert line.a == pytest.approx(1.5 * 0.8 / 1.2)
    assert line.b == pytest.approx(0.3 * 0.2 / 0.1)


def test_a_prediction_says_what_it_is_made_of_and_can_be_read_again():
    found = made(chip=M1)
    assert (found.chip, found.pairing, found.width) == (M1, "P", 4)
    assert found.id == "apple-m1-ultra-p-block-4-2026-11-30"
    for part in ("m3-p", "m3-q", "m1-q", "0.80 + 0.200 K", "1.00 + 0.600 K", "emits 2.50 tokens"):
        assert part in found.basis
    assert (found.prompts, found.notes) == (("code",), None)
    assert parse_prediction(prediction_to_dict(found)) == found


@pytest.mark.parametrize(("cost", "verdict"), [(3.4, "held"), (3.5, "failed")])
def test_it_is_judged_by_later_rows(cost, verdict):
    found = made(chip=M1)
    later = row(speedup=2.5 / cost, emitted_per_verify=2.5)
    judged = judge(
        found, [*SQUARE, record("r", "M1", rows=[later], pairing="P", date="2026-12-01")]
    )
    assert (judged.verdict, judged.firm) == (verdict, True)


def test_a_residual_widens_both_ranges():
    bumpy = sweep("m1-q", "M1", "Q", 1.5, 0.3)
    rows = [row(requested_width=k, speedup=2 / c, emitted_per_verify=2.0, acceptance=1 / (k - 1))
            for k, c in ((2, 2.0), (3, 2.7), (4, 2.6), (6, 3.3))]  # fmt: skip
    bumpy = record("m1-q", "M1", rows=rows, pairing="Q")
    cost, speedup = made((*SQUARE[:2], bumpy), chip=M1).quantities
    assert cost.tolerance > 0.05
    assert cost.tolerance_basis == f"{cost.tolerance:.2f} is the largest residual of the three fits"
    assert speedup.tolerance == pytest.approx(
        2.5 / (cost.low - cost.tolerance) - speedup.high, abs=2e-3
    )


def test_rows_that_exist_already_are_named():
    known = record("m1-p", "M1", rows=[row(speedup=1.0)], pairing="P")
    assert "existed when it was made: m1-p" in (made((*SQUARE, known), chip=M1).notes or "")


def test_the_predicted_hosts_own_rows_do_not_give_the_tokens():
    own = record("m1-p", "M1", rows=[row(speedup=1.0, emitted_per_verify=4.0)], pairing="P")
    assert made((*SQUARE, own), chip=M1).quantities == made(chip=M1).quantities


def test_another_kind_of_drafter_is_another_pairing():
    """Prompt lookup on P neither leads from MTP on P nor tells what MTP emits."""

    def lookup(name, host, pairing, rows):
        value = campaign(name, host, rows, pairing)
        value["pairing"]["kind"] = "prompt-lookup"
        return parse_record(value)

    emitting = row(speedup=1.0, emitted_per_verify=4.0)
    records = (*SQUARE, lookup("m5-p", "M5", "P", [emitting]))
    assert made(records, chip=M1).quantities == made(chip=M1).quantities
    cells = [row(requested_width=k, speedup=1.0, emitted_per_verify=1 + k / 8, acceptance=0.9)
             for k in (2, 3, 4)]  # fmt: skip
    mixed = (*SQUARE[:2], lookup("m1-q", "M1", "Q", cells))
    with pytest.raises(ConfigError, match="nothing leads from m3-p"):
        carry(mixed, source("m3-p"), chip=M1)


def test_the_newest_bridge_is_taken_unless_one_is_named():
    newer = (
        sweep("m3-r", "M3", "R", 1.0, 0.1, date="2026-10-01"),
        sweep("m1-r", "M1", "R", 1.0, 0.2, date="2026-10-01"),
    )
    records = (*SQUARE, *newer)
    assert carry(records, records[0], chip=M1).bridge.here.id == "m1-r"
    assert carry(records, records[0], chip=M1, through="q").bridge.here.id == "m1-q"


def test_lines_are_over_the_widths_that_ran():
    """Half of the rounds asked for 6 ran narrower: the mean width is 5."""
    rows = [row(requested_width=k, speedup=1.0, emitted_per_verify=1 + 0.5 * (ran - 1),
                acceptance=0.5) for k, ran in ((2, 2), (4, 4), (6, 5))]  # fmt: skip
    one = record("a", rows=rows)
    ran = line_of(one, readings([one]), "ran")
    asked = line_of(one, readings([one]), "requested")
    assert ran is not None
    assert asked is not None
    assert ran.b == pytest.approx(0.5)
    assert asked.b < ran.b


def test_prompts_with_a_width_each_are_no_sweep():
    cells = [row(requested_width=k, prompt=f"p{k}", speedup=1.0, emitted_per_verify=0.5 + k / 2,
                 acceptance=0.5) for k in (2, 3, 4)]  # fmt: skip
    one = record("a", rows=cells)
    assert line_of(one, readings([one]), "ran") is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "give one"),
        ({"chip": M1, "pairing": "Q"}, "give one"),
        ({"chip": "Apple M3 Ultra"}, "m3-p already is of P on Apple M3 Ultra"),
        ({"chip": "Apple M5 Max"}, "another pairing with width sweeps on both Apple M3 Ultra and"),
        ({"pairing": "Q"}, "another host with width sweeps of both P and Q"),
        ({"chip": M1, "through": "Z"}, "through 'Z': it needs another pairing"),
    ],
)
def test_what_cannot_be_carried(how, message):
    with pytest.raises(ConfigError, match=message):
        carry(SQUARE, source("m3-p"), **how)


def test_a_record_without_a_sweep():
    one = record("a", rows=(2.0,))
    with pytest.raises(ConfigError, match=r"a has no sweep: .* at least 3 widths"):
        carry([one], one, chip=M1)


def test_a_line_that_falls_cannot_be_scaled():
    falling = sweep("m1-q", "M1", "Q", 3.0, -0.2)
    with pytest.raises(ConfigError, match="m3-q and m1-q cannot be scaled"):
        carry((*SQUARE[:2], falling), source("m3-p"), chip=M1)


def test_a_width_that_nothing_was_emitted_at():
    with pytest.raises(ConfigError, match="how many tokens P emits per verify at width 5"):
        made(chip=M1, width=5)
