"""The gate explained: steps, who decides, and what is cited."""

from __future__ import annotations

import dataclasses

import pytest

from mlxcel.decide.chips import identify
from mlxcel.decide.explain import (
    KernelFinding,
    Question,
    batch_capability,
    explain,
    find_pairing,
)
from mlxcel.decide.gate import mtp_b1_decision
from mlxcel.errors import ConfigError
from mlxcel.evidence import load_records
from tests.decide.evidence import record

RECORDS = load_records()
DATES = {r.id: r.date for r in RECORDS}
NAMES = ("pairing", "override", "chip", "projections", "gate", "evidence", "policy", "exactness")


def ask(host, capable=True, **changes):
    changes = {"batch_basis": "as stated", **changes}
    records = changes.pop("records", RECORDS)
    return explain(Question(chip=identify(host), batch_capable=capable, **changes), records)


HOSTS = ("Apple M1 Ultra", "Apple M3 Ultra", "Apple M4 Max", "Apple M6", "cpu", "NVIDIA H200")


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("capable", [True, False])
@pytest.mark.parametrize("env", [None, "1", "off"])
def test_the_steps_lead_to_what_the_gate_says(host, capable, env):
    found = ask(host, capable, env_value=env)
    wide = identify(host).wide
    assert found.decision == mtp_b1_decision(env, capable, wide, host=host)
    assert tuple(step.name for step in found.steps) == NAMES
    assert [step.name for step in found.steps if step.decides] == [
        "override" if env else "gate" if capable else "pairing"
    ]
    assert found.step("gate").outcome == ("run" if found.decision.run else "decline")
    assert all(step.reason and step.outcome for step in found.steps)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("capable", [True, False])
def test_whatever_is_cited_is_there_with_its_date(host, capable):
    cited = [item for step in ask(host, capable).steps for item in step.evidence]
    assert all(DATES[name] == date for name, date in cited)


def test_a_bad_override_is_an_error():
    with pytest.raises(ConfigError, match="MLXCEL_ENABLE_MTP_B1='maybe'"):
        ask("Apple M3", env_value="maybe")


def test_a_measured_chip_says_so_and_an_inferred_one_too():
    assert ask("Apple M3 Ultra").step("projections").outcome == "wide (measured)"
    assert ask("Apple M3 Max").step("projections").outcome == "wide (inferred)"
    assert ask("Apple M2").step("projections").outcome == "narrow (inferred)"


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("host", ["Apple M6", "Apple processor", "cpu", "NVIDIA H200"])
def test_a_profile_decides_where_the_table_has_no_answer(host, wide):
    found = ask(host, profile=KernelFinding(wide, "taken today"))
    assert (found.decision.run, found.decision.source) == (wide, "host")
    assert "taken today" in found.step("projections").reason


@pytest.mark.parametrize(("host", "wide"), [("Apple M3 Ultra", False), ("Apple M1 Ultra", True)])
def test_a_profile_that_disagrees_with_the_table_is_told(host, wide):
    found = ask(host, profile=KernelFinding(wide, "taken today"))
    assert found.decision.run is not wide
    assert "disagrees" in found.step("projections").reason
    agreed = ask(host, profile=KernelFinding(not wide, "taken today"))
    assert "disagrees" not in agreed.step("projections").reason


def test_one_pairing_is_cited_alone():
    pairing = find_pairing(RECORDS, "gemma 4 31b", None)
    step = ask("Apple M5 Max", pairing=pairing, target="x").step("evidence")
    assert step.outcome == "mixed"
    assert dict(step.evidence) == {
        "m5max-31b-exact-2026-09-26": "2026-09-26",
        "m5max-31b-qat-exact-2026-09-26": "2026-09-26",
    }
    assert "0.85x" in step.reason
    assert "set aside: m5max-31b-2026-06, m5max-31b-2026-09-06" in step.reason


def test_a_pairing_that_was_not_measured_there_falls_back_to_the_generation():
    other = record(rows=(1.5,), pairing="Another").pairing
    step = ask("Apple M3 Ultra", pairing=other).step("evidence")
    assert step.outcome == "measured gain"
    assert "nothing on Another itself" in step.reason


@pytest.mark.parametrize(
    ("host", "near"),
    [("Apple M6", "m5max-"), ("NVIDIA H200", "gb10-"), ("Apple processor", None), ("cpu", None)],
)
@pytest.mark.parametrize("capable", [True, False])
def test_a_host_without_rows_cites_the_nearest_for_orientation_only(host, near, capable):
    step = ask(host, capable).step("evidence")
    assert step.outcome == "none"
    assert bool(step.evidence) == bool(near)
    assert all(name.startswith(near) for name, _ in step.evidence)
    assert ("for orientation only" in step.reason) == bool(near)


def test_without_any_record():
    assert ask("Apple M3 Ultra", records=()).decision.run is True
    assert ask("Apple M3 Ultra", records=()).step("evidence").outcome == "no evidence"
    assert ask("Apple M3 Ultra", False, records=()).step("evidence").outcome == "none"


def test_what_policy_and_probe_add():
    assert ask("cpu", env_value="1").step("policy").outcome == "forced"
    assert ask("cpu", adaptive=False).step("policy").outcome == "off"
    assert ask("cpu").step("policy").outcome == "measures first"
    assert ask("cpu", exactness="off").step("exactness").outcome == "off"
    for level in ("token", "bitwise"):
        assert ask("cpu", exactness=level).step("exactness").outcome == f"{level} required"


def test_finding_a_pairing():
    by_name = find_pairing(RECORDS, "GEMMA 4 31B", None)
    assert by_name.batch_capable
    by_target = find_pairing(RECORDS, "gemma-4-31b-it-4bit", "gemma-4-31b-it-assistant-bf16")
    assert by_target.name == "Gemma 4 31B"
    assert find_pairing(RECORDS, "gemma-4-31b-it-4bit", "another").name == "Gemma 4 31B"
    assert find_pairing(RECORDS, "nothing", "another") is None


def test_whether_a_target_can_batch():
    big, small = (find_pairing(RECORDS, name, None) for name in ("Gemma 4 31B", "Gemma 4 12B"))
    assert batch_capability(None, big) == (True, "from the evidence on Gemma 4 31B")
    assert batch_capability(None, small)[0] is False
    assert batch_capability(True, small) == (True, "as stated, against the evidence")
    assert batch_capability(False, small) == (False, "as stated")
    capable, basis = batch_capability(None, None)
    assert capable
    assert "--not-batch-capable" in basis


def test_a_drafter_that_the_gate_does_not_govern_is_told():
    pairing = dataclasses.replace(record(rows=(1.5,)).pairing, kind="dflash")
    assert "MTP drafters only" in ask("cpu", pairing=pairing).step("pairing").reason
