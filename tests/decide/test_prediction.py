"""Predictions are judged by later rows of the predicted host, pairing and width."""

from __future__ import annotations

import pytest

from mlxcel.decide.prediction import judge, parse_prediction
from mlxcel.errors import LoadError
from tests.decide.evidence import record, row

SPEEDUP = {"name": "speedup", "low": 0.82, "high": 1.11, "tolerance": 0, "tolerance_basis": None}
COST = {"name": "round_cost", "low": 3.6, "high": 3.6, "tolerance": 0.2, "tolerance_basis": "fit"}


def prediction(*quantities, **changes):
    value = {
        "id": "p",
        "statement": "s",
        "made_on": "2026-08-20",
        "by": "someone",
        "address": "some/where#1",
        "basis": "b",
        "chip": "Apple M1 Ultra",
        "pairing": "Gemma 4 31B",
        "width": 4,
        "prompts": ["code"],
        "protocol": "guarded",
        "quantities": list(quantities or (SPEEDUP,)),
        "settled_by": "a run",
        "notes": None,
    }
    return parse_prediction(value | changes)


def judged(*cells, quantities=(SPEEDUP,), **changes):
    return judge(prediction(*quantities), [record("r", "M1", rows=list(cells), **changes)])


@pytest.mark.parametrize(
    ("speedup", "verdict", "off_by"),
    [
        (1.0, "held", 0),
        (0.82, "held", 0),
        (0.816, "held", 0),
        (1.11, "held", 0),
        (0.75, "failed", -0.07),
        (1.31, "failed", 0.2),
    ],
)
def test_a_row_that_is_what_was_asked_for(speedup, verdict, off_by):
    found = judged(row(speedup=speedup))
    assert (found.verdict, found.firm) == (verdict, True)
    [outcome] = found.outcomes
    assert outcome.off_by == pytest.approx(off_by)
    assert outcome.within == (off_by == 0)
    assert (outcome.record, outcome.date, outcome.caveats) == ("r", "2026-09-01", ())


@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        (row(speedup=0.5), {"date": "2026-08-20"}),
        (row(speedup=0.5), {"date": "2026-08"}),
        (row(speedup=0.5), {"date": None}),
        (row(speedup=0.5, requested_width=2), {}),
        (row(speedup=0.5, requested_width=8), {}),
        (row(speedup=0.5, requested_width=4, effective_width=3), {}),
        (row(acceptance=0.5), {}),
        (row(speedup=0.5), {"pairing": "Qwen3.8 27B"}),
    ],
)
def test_rows_about_something_else_leave_it_open(cell, changes):
    found = judged(cell, **changes)
    assert (found.verdict, found.firm, found.outcomes) == ("open", False, ())
    assert found.why.startswith("open: no later row")


def test_another_host_leaves_it_open():
    assert judge(prediction(), [record("r", "M3", rows=[row(speedup=0.5)])]).verdict == "open"


def test_the_effective_width_counts():
    assert judged(row(speedup=1.0, requested_width=8, effective_width=4)).verdict == "held"


@pytest.mark.parametrize(
    ("cell", "changes", "caveat"),
    [
        (row(speedup=0.5, prompt="other"), {}, "another prompt (other)"),
        (row(speedup=0.5, prompt=None), {}, "another prompt (not named)"),
        (row(speedup=0.5), {"protocol": "single-run"}, "protocol single-run, not guarded"),
    ],
)
def test_a_row_that_differs_judges_but_not_firmly(cell, changes, caveat):
    found = judged(cell, **changes)
    assert (found.verdict, found.firm) == ("failed", False)
    assert found.outcomes[0].caveats == (caveat,)
    assert f"not firm: {caveat}" in found.why


def test_any_prompt():
    found = judge(prediction(prompts=[]), [record("r", "M1", rows=[row(speedup=1, prompt="x")])])
    assert found.firm


def test_one_row_outside_is_enough():
    found = judged(row(speedup=1.0), row(speedup=0.5))
    assert found.verdict == "failed"
    assert [outcome.within for outcome in found.outcomes] == [True, False]


@pytest.mark.parametrize(
    ("emitted", "verdict", "off_by"), [(3.6, "held", 0), (3.36, "held", 0), (3.0, "failed", -0.6)]
)
def test_round_cost_with_its_tolerance(emitted, verdict, off_by):
    found = judged(row(speedup=1.0, emitted_per_verify=emitted), quantities=(COST,))
    assert (found.verdict, found.firm) == (verdict, True)
    assert found.outcomes[0].off_by == pytest.approx(off_by)


def test_round_cost_from_the_acceptance_is_not_firm():
    found = judged(row(speedup=0.75, acceptance=0.529), quantities=(COST,))
    [outcome] = found.outcomes
    assert outcome.value == pytest.approx((1 + 3 * 0.529) / 0.75)
    assert (found.verdict, found.firm) == ("held", False)
    assert outcome.derived == "emitted 2.587 worked out from the acceptance"


def test_each_quantity_has_its_verdict():
    cell = row(speedup=0.75, emitted_per_verify=2.7)
    found = judged(cell, quantities=(COST, SPEEDUP))
    assert dict(found.by_quantity) == {"round_cost": "held", "speedup": "failed"}
    assert found.verdict == "failed"


def test_a_quantity_without_a_row_keeps_it_open():
    found = judged(row(speedup=1.0), quantities=(COST, SPEEDUP))
    assert dict(found.by_quantity) == {"round_cost": "open", "speedup": "held"}
    assert found.verdict == "open"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"made_on": "2026-08"}, "made_on must be a day"),
        ({"width": 0}, "width must be between 1"),
        ({"quantities": []}, "at least one quantity"),
        ({"quantities": [{**SPEEDUP, "low": 2}]}, r"quantities\[0\]: speedup: low 2 is above"),
        ({"quantities": [{**SPEEDUP, "tolerance": 1}]}, "needs its basis"),
        ({"quantities": [{**SPEEDUP, "name": "luck"}]}, "one of speedup, round_cost"),
        ({"extra": 1}, "unknown field extra"),
    ],
)
def test_a_bad_prediction_is_refused(changes, message):
    with pytest.raises(LoadError, match=message):
        prediction(**changes)
