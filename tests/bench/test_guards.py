"""All guards in their order, on a simulated host; a real process that burns a core trips them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest

from mlxcel.bench import guards as module
from mlxcel.bench.guards import GuardOptions, System, guarded
from mlxcel.bench.host_lock import benchmark_lock
from mlxcel.bench.pause import INDEXERS
from mlxcel.bench.processes import read_processes
from mlxcel.cli.bench_guards import make_guards
from mlxcel.decide.contention import WatchLimits
from mlxcel.decide.quiet import QuietLimits
from mlxcel.errors import CapacityError
from tests.support.simulated_host import OWN, SimulatedHost
from tests.support.standins import is_stopped, standin


def simulated(host):
    return System(read=host.read, clock=host.clock, sleep=host.sleep)


def run(tmp_path, host, seconds=60.0, **options):
    told = []
    found = GuardOptions(folder=tmp_path, **options)
    with guarded(found, own=(OWN,), system=simulated(host), notify=told.append) as guards:
        host.sleep(seconds)
    return guards, told


def test_a_quiet_host(tmp_path):
    host = SimulatedHost()
    guards, _ = run(tmp_path, host)
    report = guards.report()
    assert json.loads(json.dumps(report)) == report
    assert report.keys() == {"quiet", "contention"}
    assert (report["quiet"]["ran"], report["quiet"]["passed"]) == (True, True)
    assert (report["contention"]["ran"], report["contention"]["passed"]) == (True, True)
    assert report["quiet"]["pause"] is None
    assert host.now == 150


def test_a_process_that_burns_during_the_run_is_named(tmp_path):
    host = SimulatedHost()
    host.start("burner", lambda now: 100.0 if now > 100 else 0.0, 7)
    guards, _ = run(tmp_path, host)
    report = guards.report()
    assert report["quiet"]["passed"] is True
    assert report["contention"]["passed"] is False
    assert "burner (pid 7" in report["contention"]["reason"]


def test_without_waiting_the_record_says_so(tmp_path):
    host = SimulatedHost()
    guards, _ = run(tmp_path, host, quiet=None)
    assert host.now == 60
    assert guards.report()["quiet"]["ran"] is False


def test_a_timeout_is_told_and_recorded(tmp_path):
    host = SimulatedHost()
    host.start("miner", 100.0, 7)
    guards, told = run(tmp_path, host, quiet=QuietLimits(timeout=60))
    assert guards.report()["quiet"]["reason"] == told[-1]
    assert guards.report()["quiet"]["passed"] is False


def test_rows_are_judged_by_themselves(tmp_path):
    host = SimulatedHost()
    host.start("burner", lambda now: 100.0 if 20 < now <= 40 else 0.0, 7)
    options = GuardOptions(folder=tmp_path, quiet=None)
    with guarded(options, own=(OWN,), system=simulated(host)) as guards:
        found = []
        for _ in range(3):
            since = host.now
            host.sleep(20)
            found.append(guards.contention(since).tripped)
    assert found == [False, True, False]


def test_an_engine_elsewhere_can_belong_to_the_measurement(tmp_path):
    host = SimulatedHost()
    host.start("engine", 300.0, 7)
    options = GuardOptions(folder=tmp_path)
    with guarded(options, own=(OWN, 7), system=simulated(host)) as guards:
        host.sleep(60)
    assert guards.report()["contention"]["passed"] is True
    assert guards.report()["quiet"]["waited_seconds"] == 90


def test_the_lock_is_held_all_through(tmp_path):
    host = SimulatedHost()
    with guarded(GuardOptions(folder=tmp_path, quiet=None), system=simulated(host)):
        with pytest.raises(CapacityError, match=f"process {os.getpid()}"):
            run(tmp_path, host)
        assert host.reads == 1  # refused before anything was looked at
    with benchmark_lock(tmp_path):
        pass


def test_the_gate_waits_inside_the_pause(tmp_path):
    """Outside it would wait for the programs that are to be paused: they never rest."""
    name = "mlxcel-indexer"
    host = SimulatedHost()
    with standin(tmp_path, name) as indexer:
        host.start(name, lambda now: 0.0 if is_stopped(indexer.pid) else 100.0, indexer.pid)
        guards, _ = run(tmp_path, host, pause=(name,), quiet=QuietLimits(timeout=600))
        assert not is_stopped(indexer.pid)
    report = guards.report()
    assert report["quiet"]["passed"] is True
    assert report["quiet"]["pause"]["stopped"] == [{"name": name, "pid": indexer.pid}]


def test_the_order_of_leaving_is_that_of_entering_turned(tmp_path, monkeypatch):
    events = []
    for name in ("benchmark_lock", "paused", "Watch"):
        monkeypatch.setattr(module, name, _traced(name, getattr(module, name), events))
    run(tmp_path, SimulatedHost())
    order = ["benchmark_lock", "paused", "Watch"]
    assert events == [f"+{name}" for name in order] + [f"-{name}" for name in reversed(order)]


def _traced(name, make, events):
    class Traced:
        def __init__(self, *args, **how):
            self.inner = make(*args, **how)

        def __enter__(self):
            events.append(f"+{name}")
            return self.inner.__enter__()

        def __exit__(self, *error):
            events.append(f"-{name}")
            return self.inner.__exit__(*error)

    return Traced


def test_a_real_process_that_burns_a_core_trips_the_watch(tmp_path):
    """A child of ours, so that nothing is left behind; the reader shows it as a stranger."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def read():
        return tuple(
            dataclasses.replace(p, parent=1, name="burner") if p.pid == burner.pid else p
            for p in read_processes()
        )

    options = GuardOptions(folder=tmp_path, quiet=None, watch=WatchLimits(sample_seconds=0.2))
    try:
        with guarded(options, system=System(read=read)) as guards:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                found = guards.contention()
                if any(item.pid == burner.pid for item in found.offenders):
                    break
                time.sleep(0.2)
    finally:
        burner.kill()
        burner.wait()
    assert burner.pid in {item.pid for item in found.offenders}
    assert guards.report()["contention"]["watch_seconds"] > 0


# -- options ------------------------------------------------------------------------------


def test_options_of_a_command(tmp_path):
    found = make_guards(tmp_path, quiet=(9.0, 30.0), pause=INDEXERS, pause_deadline=60)
    assert found.quiet is not None
    assert (found.quiet.seconds, found.quiet.timeout, found.quiet.sample_seconds) == (9, 30, 1)
    assert (found.pause, found.pause_deadline) == (INDEXERS, 60)
    assert make_guards(tmp_path, quiet=None).quiet is None
    assert make_guards(tmp_path, quiet=(90.0, 0.0)).quiet == QuietLimits(timeout=0)
