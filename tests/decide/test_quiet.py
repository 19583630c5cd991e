"""The quiet gate: quiet time is gathered, a blip takes away, and waiting ends."""

from __future__ import annotations

import pytest

from mlxcel.decide.host_load import Load
from mlxcel.decide.quiet import QuietGate, QuietLimits, skipped
from mlxcel.errors import ConfigError

BUSY = (Load("backup", 7, 60.0),)


def run(pattern, limits=None, interval=10.0):
    """Verdicts of a gate over samples: ``.`` quiet, ``x`` busy."""
    gate = QuietGate(limits or QuietLimits(), began=1000.0)
    verdicts = []
    for number, mark in enumerate(pattern, 1):
        verdicts.append(gate.observe(1000.0 + number * interval, BUSY if mark == "x" else ()))
    return gate, verdicts


def test_ninety_seconds_of_quiet_open_it():
    gate, verdicts = run("." * 9)
    assert verdicts == ["waiting"] * 8 + ["quiet"]
    report = gate.report()
    assert (report["ran"], report["passed"], report["reason"]) == (True, True, None)
    assert (report["waited_seconds"], report["gathered_seconds"]) == (90, 90)
    assert (report["samples"], report["busy_samples"], report["busiest"]) == (9, 0, None)


def test_a_blip_subtracts_instead_of_starting_again():
    """Eight quiet looks, one busy: two more are needed, not nine."""
    gate, verdicts = run("........x..")
    assert verdicts[-2:] == ["waiting", "quiet"]
    assert gate.report()["busy_samples"] == 1
    assert gate.report()["busiest"] == {"name": "backup", "pid": 7, "percent": 60.0}


def test_nothing_is_owed_for_what_was_busy_before():
    _, verdicts = run("x" * 20 + "." * 9)
    assert verdicts[-2:] == ["waiting", "quiet"]


def test_a_blip_every_minute_opens_it_late():
    _, verdicts = run(".....x" * 4)
    assert verdicts.index("quiet") == 10  # 5 - 1 + 5 = 9


def test_a_host_that_is_busy_half_of_the_time_never_opens_it():
    gate, verdicts = run(".x" * 90)
    assert verdicts[-1] == "timed out"
    assert verdicts.count("waiting") == 179
    assert gate.warning is not None
    assert "not quiet for 90 s within 1800 s; busiest was backup (pid 7, 60 %" in gate.warning
    report = gate.report()
    assert (report["passed"], report["reason"]) == (False, gate.warning)


def test_quiet_at_the_last_moment_is_quiet():
    _, verdicts = run("x" * 3 + "." * 9, QuietLimits(timeout=120))
    assert verdicts[-1] == "quiet"


def test_without_a_timeout_it_waits_for_ever():
    gate, verdicts = run("x" * 5000, QuietLimits(timeout=0))
    assert set(verdicts) == {"waiting"}
    assert gate.warning is None


@pytest.mark.parametrize(("percent", "verdict"), [(14.9, "quiet"), (15.0, "waiting")])
def test_the_limit_itself_is_busy(percent, verdict):
    gate = QuietGate(QuietLimits(seconds=10), began=0.0)
    assert gate.observe(10.0, (Load("a", 1, percent), Load("b", 2, 1.0))) == verdict


def test_tenths_add_up():
    _, verdicts = run("." * 10, QuietLimits(seconds=1), interval=0.1)
    assert verdicts[-1] == "quiet"


def test_missing_is_what_is_still_to_gather():
    gate, _ = run("...x")
    assert gate.missing == 70


def test_a_gate_that_nobody_waited_at_says_so():
    assert skipped()["ran"] is False
    assert skipped()["reason"]


@pytest.mark.parametrize("name", ["percent", "seconds", "sample_seconds", "timeout"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_limits(name, value):
    with pytest.raises(ConfigError, match=name):
        QuietLimits(**{name: value})
