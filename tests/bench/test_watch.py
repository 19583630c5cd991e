"""Waiting for a quiet host and watching it, on a simulated clock; the thread on the real one."""

from __future__ import annotations

import threading
import time

import pytest

from mlxcel.bench.watch import Sampler, Watch, wait_until_quiet
from mlxcel.decide.contention import WatchLimits
from mlxcel.decide.quiet import QuietLimits
from mlxcel.errors import LoadError
from tests.support.simulated_host import OWN, SimulatedHost


def wait(host, limits=None):
    told = []
    report = wait_until_quiet(
        Sampler(host.read, (OWN,), host.clock),
        limits or QuietLimits(),
        clock=host.clock,
        sleep=host.sleep,
        notify=told.append,
    )
    return report, told


# -- the quiet gate -----------------------------------------------------------------------


def test_a_quiet_host_is_waited_at_for_ninety_seconds():
    host = SimulatedHost()
    host.start("editor", 5.0, 7)
    report, told = wait(host)
    assert (report["verdict"], report["passed"], host.now) == ("quiet", True, 90)
    assert len(told) == 3  # every half minute


def test_own_load_does_not_count():
    host = SimulatedHost()
    host.start("engine", 400.0, 7, parent=OWN)
    assert wait(host)[0]["waited_seconds"] == 90


def test_a_backup_that_ends_is_waited_for():
    host = SimulatedHost()
    host.start("backupd", lambda now: 600.0 if now < 300 else 0.0, 7)
    report, told = wait(host)
    assert (report["verdict"], host.now) == ("quiet", 390)
    assert report["busiest"] == {"name": "backupd", "pid": 7, "percent": 600.0}
    assert "busiest is backupd (pid 7, 600 %)" in told[0]


def test_something_every_minute_delays_but_does_not_block():
    """With a gate that starts again at each blip this never ends."""
    host = SimulatedHost()
    host.start("cron", lambda now: 100.0 if now % 60 < 5 else 0.0, 7)
    assert wait(host)[0]["verdict"] == "quiet"
    assert 90 < host.now <= 180


def test_a_host_that_never_rests_is_measured_with_a_warning():
    host = SimulatedHost()
    host.start("miner", 100.0, 7)
    report, told = wait(host)
    assert (report["passed"], host.now) == (False, 1800)
    assert told[-1] == report["reason"]
    assert "miner (pid 7" in told[-1]


def test_it_waits_no_longer_than_the_timeout():
    host = SimulatedHost()
    host.start("miner", 100.0, 7)
    wait(host, QuietLimits(timeout=25))
    assert host.now == 25


# -- the contention watch -----------------------------------------------------------------


def watched(host, seconds, looks):
    """A watch that looks by itself as its thread would, without the thread."""
    watch = Watch(host.read, (OWN,), WatchLimits(), host.clock)
    for _ in range(looks):
        host.sleep(seconds / looks)
        watch.look()
    return watch


def test_a_process_that_burns_a_core_trips_it():
    host = SimulatedHost()
    host.start("burner", 100.0, 7)
    found = watched(host, 60, 12).contention()
    assert found.tripped
    assert "burner (pid 7, up to 100 % of a core for 60 s)" in (found.reason or "")


def test_a_process_that_began_after_the_run_did_trips_it():
    host = SimulatedHost()
    watch = Watch(host.read, (OWN,), WatchLimits(), host.clock)
    host.sleep(5)
    watch.look()
    host.start("burner", 80.0, 9)
    host.sleep(5)
    watch.look()
    assert watch.contention().tripped
    assert not watch.contention(until=5).tripped


def test_own_load_and_a_calm_neighbour_do_not():
    host = SimulatedHost()
    host.start("engine", 200.0, 7, parent=OWN)
    host.start("editor", 3.0, 8)
    watch = watched(host, 60, 12)
    assert not watch.contention().tripped
    report = watch.report()
    assert (report["ran"], report["passed"], report["samples"]) == (True, True, 12)
    assert (report["limit_percent"], report["limit_share"], report["sample_seconds"]) == (
        15,
        0.2,
        5,
    )


def test_a_look_without_time_passing_adds_nothing():
    host = SimulatedHost()
    watch = watched(host, 10, 2)
    watch.look()
    assert watch.report()["samples"] == 2


def test_a_watch_that_fails_has_tripped():
    """A benchmark of an hour is not lost by it, but nor is it taken for undisturbed."""
    host = SimulatedHost()
    failing = threading.Event()

    def read():
        if failing.is_set():
            raise LoadError("/proc shows no process")
        return host.read()

    watch = Watch(read, (OWN,), WatchLimits(), host.clock)
    host.sleep(5)
    watch.look()
    assert not watch.contention().tripped
    failing.set()
    host.sleep(5)
    watch.look()
    found = watch.contention()
    assert found.tripped
    assert found.reason == "the watch on other processes failed: /proc shows no process"
    assert watch.report()["passed"] is False


def test_the_thread_looks_by_itself_and_once_more_at_the_end():
    host = SimulatedHost()
    ticks = iter(range(10**6))
    limits = WatchLimits(sample_seconds=0.01)
    with Watch(host.read, (OWN,), limits, lambda: float(next(ticks))) as watch:
        end = time.monotonic() + 60
        while watch.report()["samples"] < 3 and time.monotonic() < end:
            time.sleep(0.005)
        seen = host.reads
    assert seen >= 4
    assert watch.report()["samples"] == host.reads - 1 >= 4
    assert not any(thread.name == "mlxcel-watch" for thread in threading.enumerate())


def test_the_thread_ends_with_an_error_in_the_block():
    host = SimulatedHost()
    with (
        pytest.raises(RuntimeError, match="the run failed"),
        Watch(host.read, (OWN,), WatchLimits(), host.clock),
    ):
        raise RuntimeError("the run failed")
    assert not any(thread.name == "mlxcel-watch" for thread in threading.enumerate())
