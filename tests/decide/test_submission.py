"""What one more record changes, before it is added."""

from __future__ import annotations

import dataclasses

import pytest

from mlxcel.decide.agreement import parse_decision
from mlxcel.decide.prediction import parse_prediction
from mlxcel.decide.submission import effect_of, refuse_known
from mlxcel.errors import LoadError
from tests.decide.evidence import measured, record

TABLE = {"M1": False, "M2": False, "M3": True, "M4": True, "M5": True}
KNOWN = (
    record("m1", "M1", (0.8,), exactness="exact"),
    record("m3", "M3", (2.0,), exactness="exact"),
)
DECISION = parse_decision(
    {
        "made_on": "2026-11-30",
        "round_loop": 1,
        "branch": "generation-discriminator",
        "verdicts": {
            "M1": "measured loss", "M2": "inferred", "M3": "measured gain", "M4": "inferred",
            "M5": "inferred",
        },
    }
)  # fmt: skip


def effect(new, predictions=()):
    return effect_of(new, KNOWN, table=TABLE, decision=DECISION, predictions=predictions)


def test_a_record_that_agrees_changes_only_what_it_is_about():
    found = effect(record("m4", "M4", (1.8,), exactness="exact"))
    assert [(c.name, c.before and c.before.verdict, c.after and c.after.verdict)
            for c in found.subjects] == [
        ("M4", "inferred", "measured gain"),
        ("M5", "inferred", "inferred"),  # its peers are more now
    ]  # fmt: skip
    assert found.branch == ("generation-discriminator",) * 2
    # The decision was taken while M4 was inferred, so it has to be confirmed.
    assert [(d.kind, d.subject) for d in found.disagreements] == [("changed", "M4")]
    assert ("missing", "M4, any") in {(f.kind, f.subject) for f in found.settled}
    assert ("inferred", "M4") in {(f.kind, f.subject) for f in found.settled}


def test_a_record_that_contradicts_the_table_says_so():
    found = effect(record("m1-again", "M1", (3.0,), exactness="exact"))
    assert found.branch == ("generation-discriminator", "enable-everywhere")
    assert ("contradicted", "M1") in {(d.kind, d.subject) for d in found.disagreements}
    assert ("conflict", "M1, Gemma 4 31B") in {(f.kind, f.subject) for f in found.opened}


def test_a_new_host_appears():
    found = effect(measured(1, "here", "CPU Intel Xeon", (1.4,)))
    [change] = found.subjects
    assert (change.name, change.before) == ("CPU Intel Xeon", None)
    assert change.after is not None
    assert change.after.verdict == "measured gain"


def test_a_pairing_that_the_gate_does_not_govern_changes_no_verdict():
    found = effect(record("m1-12b", "M1", (2.0,), pairing="Gemma 4 12B"))
    assert (found.subjects, found.disagreements) == ((), ())


def test_predictions_on_which_its_rows_bear_are_judged():
    value = {
        "id": "p", "statement": "s", "made_on": "2026-08-20", "by": "b", "address": "a",
        "basis": "b", "chip": "Apple M1 Ultra", "pairing": "Gemma 4 31B", "width": 4,
        "prompts": [], "protocol": "guarded", "settled_by": "s", "notes": None,
        "quantities": [{"name": "speedup", "low": 0.8, "high": 1.1, "tolerance": 0,
                        "tolerance_basis": None}],
    }  # fmt: skip
    about = parse_prediction(value)
    [judged] = effect(record("new", "M1", (0.9,)), [about]).judged
    assert (judged.prediction, judged.verdict) == ("p", "held")
    assert effect(record("new", "M4", (0.9,)), [about]).judged == ()


def test_a_record_that_is_there_is_refused_under_any_id():
    with pytest.raises(LoadError, match="m1: a record with this id is there already"):
        refuse_known(record("m1", "M4", (1.0,)), KNOWN)
    with pytest.raises(LoadError, match="m1-copy is the record m1 under another id"):
        refuse_known(dataclasses.replace(KNOWN[0], id="m1-copy"), KNOWN)
    refuse_known(record("m4", "M4", (1.0,)), KNOWN)
