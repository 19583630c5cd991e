"""The static gate: its whole truth table."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from mlxcel import evidence
from mlxcel.config import FALSE, TRUE
from mlxcel.decide.chips import GATE_TABLE, GENERATIONS, identify
from mlxcel.decide.gate import OVERRIDE, mtp_b1_decision, mtp_b1_default
from mlxcel.errors import ConfigError

HOSTS = {
    "Apple M1": False,
    "Apple M1 Ultra": False,
    "Apple M2 Max": False,
    "Apple M3": True,
    "Apple M3 Ultra": True,
    "Apple M4 Pro": True,
    "Apple M5 Max": True,
    "Apple M6": None,
    "Apple processor": None,
    "NVIDIA GB10": None,
}
"""Wide quantized projections by the table; ``None`` where it has no answer."""


FLAGS = list(itertools.product((False, True), repeat=2))


def spellings(words):
    forms = (str, str.upper, str.title, lambda word: f" {word}\t", lambda word: f"{word}\n")
    return sorted({form(word) for word in words for form in forms})


@pytest.mark.parametrize(("batchable", "wide"), FLAGS)
def test_without_override(batchable, wide):
    assert mtp_b1_default(None, batchable, wide) is (not batchable or wide)


@pytest.mark.parametrize("batchable", [False, True])
@pytest.mark.parametrize("host", HOSTS)
def test_every_host_and_override(host, batchable):
    wide = identify(host).wide
    assert wide is HOSTS[host]
    assert mtp_b1_decision(None, batchable, wide).run is (not batchable or wide is True)
    for value in spellings(TRUE):
        assert mtp_b1_decision(value, batchable, wide).run is True
    for value in spellings(FALSE):
        assert mtp_b1_decision(value, batchable, wide).run is False


@pytest.mark.parametrize(("batchable", "wide"), FLAGS)
@pytest.mark.parametrize("value", [*spellings(TRUE), *spellings(FALSE)])
def test_the_override_wins_in_both_directions(value, batchable, wide):
    assert mtp_b1_default(value, batchable, wide) is (value.strip().lower() in TRUE)


@pytest.mark.parametrize(("batchable", "wide"), FLAGS)
@pytest.mark.parametrize("value", ["", " ", "2", "-1", "o n", "enable", "y", "none", "0x1", "１"])
def test_an_unknown_override_is_an_error_wherever_it_would_not_matter(value, batchable, wide):
    with pytest.raises(ConfigError) as caught:
        mtp_b1_default(value, batchable, wide)
    assert OVERRIDE in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("env", [None, *TRUE, *FALSE])
@pytest.mark.parametrize(("batchable", "wide"), FLAGS)
def test_the_record_and_the_seam_agree(env, batchable, wide):
    decision = mtp_b1_decision(env, batchable, wide)
    assert decision.run is mtp_b1_default(env, batchable, wide)
    expected = "override" if env else "host" if batchable else "not-batchable"
    assert decision.source == expected


def test_reasons_name_what_decided():
    assert f"{OVERRIDE}=off" in mtp_b1_decision(" off ", True, True).reason
    assert "cannot batch" in mtp_b1_decision(None, False, False).reason
    wide = mtp_b1_decision(None, True, True, host="Apple M3 Ultra")
    assert wide.reason.startswith("Apple M3 Ultra has wide")
    assert "narrow" in mtp_b1_decision(None, True, False).reason


@pytest.mark.parametrize("host", [host for host, wide in HOSTS.items() if wide is None])
def test_what_is_not_known_is_no_silent_decline(host):
    decision = mtp_b1_decision(None, True, identify(host).wide, host=host)
    assert (decision.run, decision.source) == (False, "unmeasured")
    assert host in decision.reason
    assert "mlxcel probe kernels" in decision.reason
    assert mtp_b1_decision(None, False, identify(host).wide).source == "not-batchable"


def test_no_generation_of_the_older_rule_lost_its_default():
    """The rule before asked for a neural accelerator, which the M5 alone has."""
    assert all(
        mtp_b1_default(None, True, GATE_TABLE[name])
        for name in GATE_TABLE
        if identify(f"Apple {name}", os_version="26.2").neural_accelerator
    )


def test_the_docstring_carries_the_evidence():
    text = mtp_b1_default.__doc__
    ids = re.findall(r"\w+-31b-[\w-]+\d", text)
    assert {name for entry in GENERATIONS.values() for name in entry.evidence} - set(ids) == {
        "m3ultra-31b-sweep-2026-08-20"
    }
    assert "ambiguous zone" in text
    assert "inferred" in text


def test_the_evidence_named_exists():
    folder = Path(evidence.__file__).parent
    for entry in GENERATIONS.values():
        assert bool(entry.evidence) is (entry.basis == "measured")
        for name in entry.evidence:
            assert (folder / f"{name}.json").is_file(), name
