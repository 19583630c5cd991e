"""Files of the policy and of the exactness probe, read for people whatever they hold."""

from __future__ import annotations

import json

import pytest

from mlxcel.decide.estimate import Estimate
from mlxcel.decide.exactness import ExactnessRecord, veto_of
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.stored import read_stored
from mlxcel.decide.stored_probes import Subject, read_probed
from mlxcel.decide.verdict import (
    UNMEASURED_MAX_AGE,
    VERDICT_MAX_AGE,
    PairingNames,
    Verdict,
    VerdictKey,
    zone_of,
)
from mlxcel.errors import LoadError

KEY = VerdictKey(
    target="t", drafter="d", host="h", width=4, weights="dense", kernel="wide", mlx="1",
    mlxcel="2", round_loop=ROUND_LOOP_VERSION, numerics="fast",
)  # fmt: skip


def stored(text, now=100.0, versions=None, **loop):
    return read_stored("a.json", text, now=now, versions=versions or {"mlx": "1", "mlxcel": "2"},
                       **loop)  # fmt: skip


def settled(speedup):
    """Text of a verdict of such a speed-up."""
    found = Estimate(emitted_per_verify=speedup, classic_seconds=1.0, round_seconds=1.0,
                     samples=4, rounds=20)  # fmt: skip
    return Verdict(zone=zone_of(found), estimate=found, settled_at=100.0).to_json(KEY)


@pytest.mark.parametrize(
    ("speedup", "state"), [(1.6, "runs"), (1.2, "left to the gate"), (1.0, "declined")]
)
def test_a_stored_verdict(speedup, state):
    found = stored(settled(speedup))
    assert (found.state, found.key, found.age_seconds) == (state, KEY, 0.0)
    assert f"{speedup:.2f}x" in found.reason


def test_an_unmeasured_verdict():
    text = Verdict(zone="unmeasured", estimate=None, settled_at=0.0).to_json(KEY)
    assert stored(text).state == "left to the gate"
    assert stored(text, now=1.0 + UNMEASURED_MAX_AGE).state == "outdated"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"versions": {"mlx": "1.1", "mlxcel": "2"}}, "mlx 1, now 1.1"),
        ({"versions": {"mlx": "1", "mlxcel": "3"}}, "mlxcel 2, now 3"),
        ({"round_loop": ROUND_LOOP_VERSION + 1}, "round loop"),
        ({"now": 101 + VERDICT_MAX_AGE}, "7.0 days old"),
    ],
)
def test_an_outdated_verdict(changes, word):
    found = stored(settled(1.6), **changes)
    assert found.state == "outdated"
    assert word in found.reason


GOOD = settled(1.6)


@pytest.mark.parametrize(
    "text",
    ["", " \n", "{", "[]", "null", "{}", '{"key": {}}', '{"key": 3}', GOOD[:-30],
     GOOD.replace('"enable"', '"decline"'), GOOD.replace('"width": 4', '"width": 0'),
     GOOD.replace('"version": 2', '"version": "2"'),
     GOOD.replace('"drafter": null', '"drafter": 3')],
)  # fmt: skip
def test_a_corrupt_file(text):
    found = stored(text)
    assert (found.state, found.key, found.verdict) == ("corrupt", None, None)
    assert found.reason


def test_names_age_and_when_it_is_due():
    names = PairingNames(target="Gemma", drafter="head", host="Apple M3")
    text = Verdict(zone="unmeasured", estimate=None, settled_at=50.0).to_json(KEY, names)
    found = stored(text)
    assert (found.names, found.age_seconds) == (names, 50.0)
    assert found.due_at == 50.0 + UNMEASURED_MAX_AGE
    assert stored(GOOD).due_at == 100.0 + VERDICT_MAX_AGE
    assert stored(GOOD).names == PairingNames()


def test_another_host_is_elsewhere_and_another_version_outdated():
    assert stored(GOOD, host="h").state == "runs"
    other = stored(GOOD, host="i")
    assert (other.state, other.in_force, other.key) == ("elsewhere", False, KEY)
    old = stored(GOOD.replace('"version": 2', '"version": 1'))
    assert (old.state, old.key) == ("outdated", None)
    assert "version 1, now 2" in old.reason


def test_a_verdict_of_the_future_is_outdated():
    assert "in the future" in stored(GOOD, now=-1e6).reason


def found_by_probe(level):
    return ExactnessRecord(
        level=level, width=4, reason="as a test says", draws=3,
        first_draw="a" if level == "divergent" else "",
    )  # fmt: skip


def test_exactness_outranks_a_verdict_in_force_only():
    veto, fine = veto_of(found_by_probe("divergent")), veto_of(found_by_probe("token"))
    vetoed = stored(GOOD).judged(veto)
    assert (vetoed.state, vetoed.exactness) == ("vetoed", veto)
    assert vetoed.reason.startswith("the exactness probe declined: as a test says; otherwise")
    assert stored(GOOD).judged(fine).state == "runs"
    assert stored(GOOD, host="i").judged(veto).state == "elsewhere"


# -- kept probes ----------------------------------------------------------------------

PROBE_KEY = {
    "target": "t", "host": {"chip": "c"}, "weights": ["dense", "float32"], "lean": 2,
    "width": 4, "sizes": [16, 256, 512], "numerics": "fast", "round_loop": 1,
}  # fmt: skip


def kept(version=1, name="Gemma", **changes):
    record = found_by_probe("token").to_dict() | ({"named": name} if name else {})
    return json.dumps({"version": version, "key": PROBE_KEY | changes, "record": record})


def probed(text):
    return read_probed(text, version=1, digest=lambda facts: facts["chip"], name_field="named")


def test_a_kept_probe_and_the_verdicts_it_judges():
    found = probed(kept())
    assert (found.target, found.sizes, found.record.level) == ("Gemma", (16, 256, 512), "token")
    key = VerdictKey(
        target="t", drafter="any", host="c", width=4, weights="dense float32 lean 2", kernel="any",
        mlx="any", mlxcel="any", round_loop=1, numerics="fast",
    )  # fmt: skip
    assert Subject.of(key) == found.subject
    assert probed(kept(lean=False)).subject != found.subject
    assert probed(kept(name=None)).target is None
    assert probed(kept(version=2)) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"key": {}, "record": {}}', kept(weights="dense"), kept(target=[]),
     kept(sizes=3), kept(host=None), kept().replace('"draws": 3', '"draws": -1'),
     kept().replace('"token"', '"perhaps"')],
)  # fmt: skip
def test_a_damaged_probe_is_an_error_of_ours(text):
    with pytest.raises(LoadError):
        probed(text)
