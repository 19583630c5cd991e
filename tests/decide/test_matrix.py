"""The decision matrix, and how table and decision are compared with it."""

from __future__ import annotations

import pytest

from mlxcel.decide.agreement import Decision, conflicts, disagreements, parse_decision
from mlxcel.decide.matrix import decide
from mlxcel.decide.record_json import parse_record
from mlxcel.errors import LoadError
from tests.decide.evidence import campaign, measured, record, row

TABLE = {"M1": False, "M2": False, "M3": True, "M4": True, "M5": True}
LOSS = record("m1", "M1", rows=[0.75, 0.93])
GAIN = record("m3", "M3", rows=[2.65, 2.41, 1.95])
NEWER = record("m5", "M5", rows=[1.9])
ALL = (LOSS, GAIN, NEWER)


def verdicts(*records, **kwargs):
    return {s.name: (s.verdict, s.supports) for s in decide(records, **kwargs).subjects}


def test_measured_and_inferred():
    assert verdicts(*ALL) == {
        "M1": ("measured loss", False),
        "M2": ("inferred", False),
        "M3": ("measured gain", True),
        "M4": ("inferred", True),
        "M5": ("measured gain", True),
    }
    assert disagreements(decide(ALL), TABLE) == ()


def test_without_evidence_nothing_is_said():
    matrix = decide(())
    assert {(s.verdict, s.supports) for s in matrix.subjects} == {("no evidence", None)}
    assert matrix.branch.name == "undecided"
    assert {d.kind for d in disagreements(matrix, TABLE)} == {"undecided"}
    assert len(disagreements(matrix, TABLE)) == 5


def test_pairings_that_the_gate_does_not_govern_say_nothing():
    other = record("m1-12b", "M1", rows=[1.48, 1.25], pairing="Gemma 4 12B")
    block = campaign("m1-block", "M1", rows=[1.4])
    block["pairing"]["kind"] = "dflash"
    unsaid = campaign("m1-unsaid", "M1", rows=[1.4])
    unsaid["pairing"]["batch_capable"] = None
    others = (other, parse_record(block), parse_record(unsaid))
    assert verdicts(*ALL, *others) == verdicts(*ALL)


def test_an_inferred_verdict_names_what_it_rests_on():
    m2 = decide(ALL).subject("M2")
    assert m2 is not None
    assert m2.evidence == (("m1", "2026-09-01"),)
    assert "not measured" in m2.why


def test_peers_that_disagree_leave_a_generation_open():
    matrix = decide((LOSS, GAIN, record("m5", "M5", rows=[0.8])))
    m4 = matrix.subject("M4")
    assert m4 is not None
    assert (m4.verdict, m4.supports) == ("no evidence", None)
    kinds = {(d.kind, d.subject) for d in disagreements(matrix, TABLE)}
    assert kinds == {("undecided", "M4"), ("contradicted", "M5")}


def test_exact_rows_outrank_inexact_ones_which_stay_beside_them():
    exact = record("exact", "M5", rows=[0.85, 0.9], exactness="exact")
    matrix = decide((*ALL, exact))
    m5 = matrix.subject("M5")
    assert m5 is not None
    assert (m5.verdict, m5.supports) == ("measured loss", False)
    [cell] = m5.cells
    assert {case.record for case in cell.deciding} == {"exact"}
    [aside] = cell.set_aside
    assert (aside.case.record, aside.conflicts) == ("m5", True)
    assert "exact path" in aside.reason
    assert "1 outranked to the contrary" in m5.why
    [conflict] = conflicts(matrix)
    assert ([c.speedup for c in conflict.gains], len(conflict.losses)) == ([1.9], 2)


def test_current_rows_outrank_stale_ones_even_exact_ones():
    old = record("old", "M3", rows=[0.7], date="2026-06", exactness="exact")
    matrix = decide((*ALL, old))
    m3 = matrix.subject("M3")
    assert m3 is not None
    assert m3.verdict == "measured gain"
    assert m3.cells[0].set_aside[0].reason.startswith("stale")


def test_stale_rows_decide_where_there_are_no_others():
    assert verdicts(record("old", "M3", rows=[0.7], date="2026-06"))["M3"][1] is False


@pytest.mark.parametrize(("speeds", "supports"), [([0.85, 1.4], True), ([0.5, 1.4], False)])
def test_mixed_cases_lean_to_their_geometric_mean(speeds, supports):
    assert verdicts(record("x", "M5", rows=speeds))["M5"] == ("mixed", supports)


def test_break_even_is_no_gain():
    assert verdicts(record("x", "M5", rows=[1.0]))["M5"] == ("measured loss", False)


def test_pairings_that_differ_leave_the_default_open():
    other = record("qwen", "M3", rows=[0.8], pairing="Qwen3.8 27B")
    matrix = decide((*ALL, other))
    assert verdicts(*ALL, other)["M3"] == ("mixed", None)
    assert ("undecided", "M3") in {(d.kind, d.subject) for d in disagreements(matrix, TABLE)}


def test_of_a_sweep_the_best_width_counts():
    cells = [row(requested_width=k, speedup=x) for k, x in ((2, 1.46), (4, 1.35), (8, 0.78))]
    m5 = decide([record("x", "M5", rows=cells)]).subject("M5")
    assert m5 is not None
    [case] = m5.cells[0].deciding
    assert (case.width, case.speedup, m5.verdict) == (2, 1.46, "measured gain")


def test_rows_without_a_prompt_stand_alone():
    cells = [row(prompt=None, speedup=x) for x in (1.4, 0.8)]
    assert verdicts(record("x", "M5", rows=cells))["M5"][0] == "mixed"


def test_hosts_without_a_generation_have_their_own_line():
    matrix = decide((*ALL, record("gb10", "NVIDIA GB10", rows=[1.9])))
    gb10 = matrix.subject("NVIDIA GB10")
    assert gb10 is not None
    assert (gb10.verdict, gb10.evidence) == ("measured gain", (("gb10", "2026-09-01"),))
    assert disagreements(matrix, TABLE) == ()


@pytest.mark.parametrize(
    ("m1", "m3", "branch"),
    [
        ([0.75], [2.4], "generation-discriminator"),
        ([1.2], [2.4], "enable-everywhere"),
        ([0.75], [0.9], "keep"),
        ([1.2], [0.9], "undecided"),
        (None, [2.4], "generation-discriminator"),
        ([0.75], None, "undecided"),
        (None, [0.9], "undecided"),
        ([1.2], None, "undecided"),
    ],
)
def test_branches(m1, m3, branch):
    hosts = {"M1": m1, "M3": m3}
    records = [record(h.lower(), h, rows=x) for h, x in hosts.items() if x is not None]
    found = decide(records).branch
    assert found.name == branch
    assert {name for name, _ in found.evidence} == {r.id for r in records}


def test_the_second_branch_asks_about_one_pairing():
    other = record("qwen", "M1", rows=[1.3], pairing="Qwen3.8 27B")
    assert decide((*ALL, other)).branch.name == "generation-discriminator"


@pytest.mark.parametrize("name", list(TABLE))
def test_every_edited_entry_of_the_table_is_reported(name):
    found = disagreements(decide(ALL), TABLE | {name: not TABLE[name]})
    assert [(d.kind, d.subject) for d in found] == [("contradicted", name)]
    assert found[0].evidence


def test_a_measured_generation_must_be_in_the_table():
    table = {name: on for name, on in TABLE.items() if name != "M3"}
    assert [(d.kind, d.subject) for d in disagreements(decide(ALL), table)] == [("missing", "M3")]


def test_an_entry_that_the_evidence_does_not_know():
    [found] = disagreements(decide(ALL), TABLE | {"M6": True})
    assert (found.kind, found.subject) == ("undecided", "M6")


def decision(**changes):
    value = {
        "made_on": "2026-11-30",
        "round_loop": 1,
        "branch": "generation-discriminator",
        "verdicts": {name: verdict for name, (verdict, _) in verdicts(*ALL).items()},
    }
    return parse_decision(value | changes)


def test_a_decision_that_still_stands():
    assert disagreements(decide(ALL), TABLE, decision(), version=1) == ()


def test_a_changed_verdict_is_reported_though_the_table_stands():
    matrix = decide((LOSS, record("m3", "M3", rows=[2.65, 2.41, 0.95]), NEWER))
    assert disagreements(matrix, TABLE) == ()
    [found] = disagreements(matrix, TABLE, decision(), version=1)
    assert (found.kind, found.subject) == ("changed", "M3")


def test_a_new_round_loop_needs_a_new_decision():
    [found] = disagreements(decide(ALL), TABLE, decision(), version=2)
    assert (found.kind, found.subject) == ("version", "round loop")


def test_another_branch_is_reported():
    [found] = disagreements(decide(ALL), TABLE, decision(branch="keep"), version=1)
    assert found.kind == "branch"


def test_a_verdict_that_is_gone_is_reported():
    old = decision()
    old = Decision(
        made_on=old.made_on,
        round_loop=1,
        branch=old.branch,
        verdicts={**old.verdicts, "NVIDIA GB10": "measured gain"},
    )
    [found] = disagreements(decide(ALL), TABLE, old, version=1)
    assert (found.kind, found.subject) == ("changed", "NVIDIA GB10")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"made_on": "2026-11"}, "made_on must be a day"),
        ({"round_loop": "1"}, "round_loop must be a number"),
        ({"verdicts": []}, "an object of texts"),
        ({"more": 1}, "unknown field more"),
    ],
)
def test_a_bad_decision_is_refused(changes, message):
    with pytest.raises(LoadError, match=message):
        decision(**changes)


def test_stale_measured_rows_give_way():
    """Rows of our own older loop do not decide beside a current one."""
    old = measured(1, "old", "M3", rows=[0.7])
    assert verdicts(*ALL, old, version=1)["M3"][0] == "mixed"
    assert verdicts(*ALL, old, version=2)["M3"][0] == "measured gain"
