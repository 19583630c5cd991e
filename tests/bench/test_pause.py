"""Programs are stopped within the block, and nothing stays stopped, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mlxcel
from mlxcel.bench import pause as pause_module
from mlxcel.bench import resumer
from mlxcel.bench.pause import INDEXERS, paused
from mlxcel.bench.processes import read_processes
from mlxcel.errors import ConfigError, EngineError
from tests.support.standins import eventually, is_stopped, standin

NAME, OTHER = "mlxcel-standin", "mlxcel-other"

DRIVER = """
import os, sys, time
from mlxcel.bench.pause import paused
with paused(["mlxcel-standin"], deadline=float(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(20)  # it holds copies of all our descriptors
        os._exit(0)
    print("paused", flush=True)
    time.sleep(60)
"""


def outside(read=read_processes):
    """All processes, stand-ins with a parent of their own."""
    for process in read():
        if process.name in (NAME, OTHER):
            yield pause_module.Process(
                pid=process.pid, parent=1, name=process.name, started=process.started,
                stopped=process.stopped, seconds=process.seconds,
            )  # fmt: skip
        else:
            yield process


def pausing(names=(NAME,), deadline=60.0, told=None):
    return paused(
        names,
        deadline=deadline,
        read=lambda: tuple(outside()),
        notify=(told if told is not None else []).append,
    )


@contextmanager
def driver(deadline=60.0, how="plain"):
    """A benchmark of its own process that keeps stand-ins paused."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(deadline), how],
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"paused\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture
def watchdogs(monkeypatch):
    """Every watchdog that a test starts."""
    started, start = [], pause_module._start

    def note(*how):
        started.append(start(*how))
        return started[-1]

    monkeypatch.setattr(pause_module, "_start", note)
    return started


@pytest.fixture
def indexer(tmp_path):
    with standin(tmp_path, NAME) as process:
        yield process


# -- within the block ---------------------------------------------------------------------


def test_listed_programs_stop_within_the_block_and_others_do_not(tmp_path, indexer, watchdogs):
    with standin(tmp_path, OTHER) as other:
        with pausing() as pause:
            assert eventually(lambda: is_stopped(indexer.pid))
            assert not is_stopped(other.pid)
            report = pause.report()
            assert report["stopped"] == [{"name": NAME, "pid": indexer.pid}]
            assert (report["refused"], report["ended_early"]) == ([], None)
            assert [watchdog.poll() for watchdog in watchdogs] == [None]
        assert not is_stopped(indexer.pid)
    assert [watchdog.returncode for watchdog in watchdogs] == [0]


def test_names_are_whole_names(indexer, watchdogs):
    with pausing([NAME[:-1], NAME.upper(), "standin"]) as pause:
        assert not is_stopped(indexer.pid)
        assert pause.report()["stopped"] == []
        assert watchdogs == []  # nothing to let go on


def test_an_error_in_the_block_lets_them_go_on(indexer):
    with pytest.raises(RuntimeError, match="the run failed"), pausing():
        raise RuntimeError("the run failed")
    assert not is_stopped(indexer.pid)


def test_what_was_stopped_before_stays_stopped(indexer):
    indexer.send_signal(signal.SIGSTOP)
    assert eventually(lambda: is_stopped(indexer.pid))
    with pausing() as pause:
        assert pause.report()["stopped"] == []
    assert is_stopped(indexer.pid)


def test_our_own_tree_is_never_stopped(indexer):
    """The stand-in is a child of ours: read as it is, it belongs to the measurement."""
    with paused([NAME], read=read_processes) as pause:
        assert not is_stopped(indexer.pid)
        assert pause.report()["stopped"] == []


def test_one_that_ends_meanwhile_is_no_trouble(tmp_path, indexer):
    with standin(tmp_path, NAME) as second:
        with pausing() as pause:
            assert len(pause.report()["stopped"]) == 2
            second.kill()
            second.wait()
        assert not is_stopped(indexer.pid)


def test_processes_of_another_user_are_reported(monkeypatch, indexer):
    kill, told = os.kill, []

    def refuse(pid, number):
        if number == signal.SIGSTOP:
            raise PermissionError
        kill(pid, number)

    monkeypatch.setattr(pause_module.os, "kill", refuse)
    with pausing(told=told) as pause:
        assert pause.report()["refused"] == [
            {"name": NAME, "pid": indexer.pid, "why": "it belongs to another user"}
        ]
    assert told == [f"{NAME} (pid {indexer.pid}) is not paused: it belongs to another user"]


def test_without_names_nothing_is_looked_for():
    with paused((), read=lambda: pytest.fail("looked")) as pause:
        assert pause.names == ()


# -- whoever is killed --------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_benchmark_leaves_nothing_stopped(indexer, number):
    with driver() as benchmark:
        assert eventually(lambda: is_stopped(indexer.pid))
        benchmark.send_signal(number)
        assert eventually(lambda: not is_stopped(indexer.pid))
        # By the watchdog, not since the stand-in has ended.
        assert indexer.poll() is None


def test_a_killed_process_group_leaves_nothing_stopped(indexer):
    """As a terminal or a job scheduler does it: everything of the session at once."""
    with driver() as benchmark:
        assert eventually(lambda: is_stopped(indexer.pid))
        os.killpg(benchmark.pid, signal.SIGKILL)
        assert eventually(lambda: not is_stopped(indexer.pid))


def test_a_child_that_holds_our_descriptors_hides_no_death(indexer):
    """Its copy keeps the watchdog's input open; the watchdog then misses its parent."""
    with driver(how="fork") as benchmark:
        assert eventually(lambda: is_stopped(indexer.pid))
        benchmark.send_signal(signal.SIGKILL)
        benchmark.wait()
        assert eventually(lambda: not is_stopped(indexer.pid))


def test_a_benchmark_that_hangs_is_overtaken_by_the_deadline(indexer):
    with driver(deadline=3.0) as benchmark:
        assert eventually(lambda: is_stopped(indexer.pid))
        benchmark.send_signal(signal.SIGSTOP)  # not even its threads run
        assert eventually(lambda: not is_stopped(indexer.pid))


def test_the_deadline_is_reported_where_the_benchmark_goes_on(indexer):
    told = []
    with pausing(deadline=0.3, told=told) as pause:
        assert eventually(lambda: pause.ended_early is not None)
        assert not is_stopped(indexer.pid)
        assert pause.report()["ended_early"] == (
            "paused programs went on after the deadline of 0.3 s"
        )
    assert told == [pause.ended_early]


def test_a_killed_watchdog_ends_the_pause(indexer, watchdogs):
    """Without it a kill of the benchmark would leave everything stopped."""
    with pausing() as pause:
        assert eventually(lambda: is_stopped(indexer.pid))
        os.kill(watchdogs[0].pid, signal.SIGKILL)
        assert eventually(lambda: not is_stopped(indexer.pid))
        assert eventually(lambda: pause.ended_early is not None)
        assert "watchdog ended with status -9" in (pause.ended_early or "")


def test_a_watchdog_that_does_not_start_stops_nothing(monkeypatch, indexer):
    monkeypatch.setattr(resumer, "__file__", os.devnull)
    with pytest.raises(EngineError, match=r"watchdog .* does not start"), pausing():
        pytest.fail("the block ran")
    assert not is_stopped(indexer.pid)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_is_a_positive_number(deadline):
    with pytest.raises(ConfigError, match="deadline must be above 0"), pausing(deadline=deadline):
        pass


# -- the watchdog's parts -----------------------------------------------------------------


def test_a_number_that_belongs_to_another_process_now_is_left_alone(indexer):
    indexer.send_signal(signal.SIGSTOP)
    assert eventually(lambda: is_stopped(indexer.pid))
    assert resumer.resume([(indexer.pid, "another start")]) == 0
    assert is_stopped(indexer.pid)
    assert resumer.resume([(indexer.pid, resumer.identity(indexer.pid))]) == 1
    assert eventually(lambda: not is_stopped(indexer.pid))


def test_where_it_cannot_be_told_the_signal_is_sent(indexer):
    indexer.send_signal(signal.SIGSTOP)
    assert eventually(lambda: is_stopped(indexer.pid))
    assert resumer.resume([(indexer.pid, None)]) == 1
    assert eventually(lambda: not is_stopped(indexer.pid))


def test_the_watchdog_needs_nothing_but_the_standard_library():
    code = (
        "import runpy, sys; sys.argv = ['x'];"
        f"runpy.run_path({resumer.__file__!r}, run_name='other');"
        "print([m for m in sys.modules if m.startswith('mlxcel')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_list_is_of_exact_program_names():
    assert {"mds", "mdworker", "mdworker_shared", "mediaanalysisd", "OneDrive"} <= set(INDEXERS)
    assert len(set(INDEXERS)) == len(INDEXERS)
    # Longer names are cut by Linux and would never match.
    assert all(0 < len(name) <= 15 for name in INDEXERS)


def test_no_thread_is_left_behind(indexer):
    with pausing():
        assert any(t.name == "mlxcel-pause" for t in threading.enumerate())
    assert not any(t.name == "mlxcel-pause" for t in threading.enumerate())
