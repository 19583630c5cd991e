"""The audit names what is weak in the evidence, and what would settle it."""

from __future__ import annotations

import pytest

from mlxcel.decide.audit import WANTED, Want, audit
from tests.decide.evidence import measured, record, row


def kinds(records, kind, **kwargs):
    found = audit(records, wanted=(), **kwargs)
    return [(f.subject, f.evidence) for f in found if f.kind == kind]


def test_a_changed_round_loop_makes_every_older_record_stale():
    old = [measured(3, f"old{i}", host, rows=[2.0]) for i, host in enumerate(("M1", "M3", "M5"))]
    assert kinds(old, "stale", version=3) == []
    stale = kinds(old, "stale", version=4)
    assert [evidence for _, evidence in stale] == [("old0",), ("old1",), ("old2",)]
    new = measured(4, "new", "M3", rows=[2.0])
    assert len(kinds([*old, new], "stale", version=4)) == 3


def test_a_stale_record_says_what_is_current():
    old, new = record("old", rows=[2.0], date="2026-06"), record("new", rows=[2.0])
    [finding] = [f for f in audit([old, new], wanted=()) if f.kind == "stale"]
    assert "#1194 to #1215" in finding.message
    assert finding.settle == "current already: new"
    [finding] = [f for f in audit([old], wanted=()) if f.kind == "stale"]
    assert finding.settle == "measure it again"


def test_undated():
    assert kinds([record(rows=[2.0], date=None)], "undated") == [
        ("Apple M3 Ultra, Gemma 4 31B", ("a",))
    ]


def test_inferred_entries_name_what_they_rest_on():
    records = [record("m1", "M1", rows=[0.8]), record("m3", "M3", rows=[2.0])]
    assert kinds(records, "inferred") == [("M2", ("m1",)), ("M4", ("m3",)), ("M5", ("m3",))]


@pytest.mark.parametrize(
    ("protocol", "weak"),
    [("single-run", 1), ("fast-test", 1), ("guarded", 0), ("unknown", 0), ("profile", 0)],
)
def test_single_runs(protocol, weak):
    assert len(kinds([record(rows=[2.0], protocol=protocol)], "single-run")) == weak


@pytest.mark.parametrize(("spread", "found"), [(4.0, 0), (4.1, 1), (None, 0)])
def test_spread_as_given(spread, found):
    assert len(kinds([record(rows=[row(spread_percent=spread)])], "spread")) == found


@pytest.mark.parametrize("arm", ["classic_samples", "speculative_samples"])
def test_spread_of_the_samples_of_either_arm(arm):
    noisy = row(n=3, **{arm: [10.0, 10.0, 10.5]})
    [finding] = [f for f in audit([record(rows=[noisy])], wanted=()) if f.kind == "spread"]
    assert finding.message == "code at width 4: 5.0 %; the limit is 4 %"


def test_rows_narrower_than_they_say():
    """Acceptance 0.5 and 2 tokens per verify are rounds of width 3."""
    cells = [
        row(requested_width=8, acceptance=0.5, emitted_per_verify=2.0),
        row(requested_width=3, acceptance=0.5, emitted_per_verify=2.0),
        row(requested_width=8, effective_width=3, acceptance=0.5, emitted_per_verify=2.0),
        row(requested_width=8, acceptance=0.0, emitted_per_verify=1.0),
    ]
    [finding] = [f for f in audit([record(rows=cells)], wanted=()) if f.kind == "width"]
    assert "width 8 ran as 3.00 on average" in finding.message


def test_conflicts_stand_side_by_side():
    records = [
        record("fast", "M5", rows=[1.9]),
        record("exact", "M5", rows=[0.85], exactness="exact"),
    ]
    [finding] = [f for f in audit(records, wanted=()) if f.kind == "conflict"]
    assert (finding.subject, finding.evidence) == ("M5, Gemma 4 31B", ("exact", "fast"))
    assert finding.message == "gains 1.90x (inexact-wide); losses 0.85x (exact)"


def missing(*records, wanted=WANTED):
    return {f.subject for f in audit(records, wanted=wanted) if f.kind == "missing"}


def test_everything_is_missing_without_evidence():
    assert missing() == {want.subject for want in WANTED}
    assert all(f.settle for f in audit(()))


@pytest.mark.parametrize(
    ("host", "changes", "gone"),
    [
        ("M1", {}, {"M1 Ultra, Gemma 4 31B, guarded protocol"}),
        ("M1", {"protocol": "single-run"}, set()),
        ("M1", {"date": "2026-06"}, set()),
        ("M2", {"protocol": "single-run"}, {"M2, any"}),
        ("M3", {}, set()),
        ("M3", {"exactness": "exact-narrow"}, {"M3 Ultra, Gemma 4 31B, exact path"}),
        ("M4", {"pairing": "Qwen3.8 27B"}, {"M4, any"}),
        ("M4", {"pairing": "Gemma 4 12B"}, set()),
        ("M5", {"exactness": "exact", "protocol": "fast-test"}, set()),
        (
            "M5",
            {"exactness": "exact"},
            {"M5 Max, Gemma 4 31B, exact path under the guarded protocol"},
        ),
    ],
)
def test_what_is_wanted(host, changes, gone):
    changes = dict(changes)
    made = record("x", host, rows=[1.2], **changes)
    assert missing() - missing(made) == gone


def test_a_record_without_speeds_is_none_that_is_wanted():
    want = Want(subject="M2, any", generation="M2", settle="run it")
    assert missing(record("x", "M2", rows=[row(acceptance=0.5)]), wanted=(want,)) == {"M2, any"}


def test_sound_evidence_has_no_findings_of_its_own():
    sound = [measured(1, f"x{i}", f"M{i}", rows=[2.0]) for i in range(1, 6)]
    assert audit(sound, version=1, wanted=()) == ()
