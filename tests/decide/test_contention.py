"""The contention watch: what share of an interval was disturbed, and by whom."""

from __future__ import annotations

import pytest

from mlxcel.decide.contention import Sample, WatchLimits, judge_contention
from mlxcel.decide.host_load import Load
from mlxcel.errors import ConfigError


def samples(*percents, span=5.0, name="burner", pid=7):
    return [
        Sample(span * at, span * (at + 1), (Load(name, pid, float(percent)),) if percent else ())
        for at, percent in enumerate(percents)
    ]


def test_a_process_that_burns_a_core_trips_it_and_is_named():
    found = judge_contention(samples(99, 100, 99, 98), WatchLimits())
    assert found.tripped
    assert found.reason == (
        "other processes were busy for 20 of 20 s: burner (pid 7, up to 100 % of a core for 20 s)"
    )
    report = found.report()
    assert (report["ran"], report["passed"], report["reason"]) == (True, False, found.reason)
    assert report["offenders"] == [{"name": "burner", "pid": 7, "percent": 100.0, "seconds": 20.0}]


def test_isolated_spikes_are_noted_and_do_not_trip():
    found = judge_contention(samples(0, 0, 40, 0, 14, 0, 0, 0, 0, 0), WatchLimits())
    assert (found.tripped, found.reason, found.busy_seconds) == (False, None, 5)
    assert found.report()["offenders"][0]["percent"] == 40
    assert found.report()["passed"] is True


@pytest.mark.parametrize(("busy", "tripped"), [(2, False), (3, True)])
def test_more_than_a_fifth_of_the_time_is_too_much(busy, tripped):
    found = judge_contention(samples(*[20] * busy, *[0] * (10 - busy)), WatchLimits())
    assert found.tripped is tripped


def test_one_row_may_be_disturbed_and_another_not():
    run = samples(0, 0, 0, 0, 100, 100, 0, 0, 0, 0, 0, 0)
    limits = WatchLimits()
    assert not judge_contention(run, limits).tripped
    assert judge_contention(run, limits, 15, 35).tripped
    assert not judge_contention(run, limits, 0, 20).tripped
    # A row that shares one second of twenty with it is not spoilt.
    found = judge_contention(run, limits, 1, 21)
    assert (found.tripped, found.busy_seconds, found.seconds) == (False, 1, 20)


def test_an_interval_that_nobody_looked_at_is_not_taken_for_quiet():
    for taken, since in (([], 0.0), (samples(0, 0), 100.0)):
        found = judge_contention(taken, WatchLimits(), since)
        assert found.tripped
        assert "not watched" in (found.reason or "")
        assert found.report()["ran"] is False


def test_the_longest_offenders_are_named_and_the_others_counted():
    loads = tuple(Load(f"p{n}", n, 90.0 - n) for n in range(1, 6))
    run = [Sample(0, 5, loads), Sample(5, 10, (Load("p5", 5, 50.0),))]
    reason = judge_contention(run, WatchLimits()).reason or ""
    assert reason.startswith("other processes were busy for 10 of 10 s: p5 (pid 5, up to 85 %")
    assert reason.endswith("p2 (pid 2, up to 88 % of a core for 5 s) and 2 more")


@pytest.mark.parametrize(
    ("name", "value"),
    [("share", -0.1), ("share", 1.0), ("percent", 0.0), ("sample_seconds", float("inf"))],
)
def test_bad_limits(name, value):
    with pytest.raises(ConfigError, match=name):
        WatchLimits(**{name: value})
