"""Stops programs that index the disk while something is measured, and lets them go on.

Two processes can each undo it alone: this one, and a watchdog (`mlxcel.bench.resumer`) that
lives in a session of its own. Whichever ends first, the other lets everything go on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.bench import resumer
from mlxcel.bench.processes import ReadProcesses, read_processes
from mlxcel.bench.watch import Notify
from mlxcel.decide.host_load import Process, own_tree
from mlxcel.errors import ConfigError, EngineError

__all__ = ["DEADLINE_SECONDS", "INDEXERS", "Pause", "paused"]

log = logging.getLogger(__name__)

INDEXERS = (
    "mds",
    "mds_stores",
    "mdworker",
    "mdworker_shared",
    "corespotlightd",
    "mediaanalysisd",
    "photoanalysisd",
    "photolibraryd",
    "OneDrive",
)
"""Programs of macOS (and OneDrive) that read the whole disk when they please. ``mds`` and
``mds_stores`` belong to root, so only root can stop them. Time Machine is not among them:
``tmutil stopbackup`` ends it."""

DEADLINE_SECONDS = 2700.0
"""After so many seconds they go on in any case (lablup/mlxcel#1215)."""

_START_SECONDS = 20.0
_END_SECONDS = 10.0
_Stopped = tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A process that could not be stopped, and why."""

    pid: int
    name: str
    why: str


class Pause:
    """What is stopped, and how that ended.

    Attributes
    ----------
    names : tuple of str
        Programs that were looked for.
    deadline : float
        Seconds after which everything goes on.
    ended_early : str or None
        Why they go on already although the measurement has not ended.
    """

    def __init__(self, names: tuple[str, ...], deadline: float) -> None:
        self.names = names
        self.deadline = deadline
        self.ended_early: str | None = None
        self._stopped: list[Process] = []
        self._refused: list[_Refused] = []

    def report(self) -> dict[str, Any]:
        """What was done, as JSON for a record's provenance."""
        return {
            "names": list(self.names),
            "deadline_seconds": self.deadline,
            "stopped": [{"name": item.name, "pid": item.pid} for item in self._stopped],
            "refused": [
                {"name": item.name, "pid": item.pid, "why": item.why} for item in self._refused
            ],
            "ended_early": self.ended_early,
        }

    def stop(self, processes: Iterable[Process]) -> None:
        """Stop processes, and note those that cannot be."""
        for process in processes:
            try:
                os.kill(process.pid, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            except PermissionError:
                why = "it belongs to another user"
                self._refused.append(_Refused(process.pid, process.name, why))
            else:
                self._stopped.append(process)


@contextmanager
def paused(
    names: Sequence[str],
    *,
    deadline: float = DEADLINE_SECONDS,
    own: Iterable[int] = (),
    read: ReadProcesses = read_processes,
    notify: Notify = log.warning,
) -> Iterator[Pause]:
    """Keep programs stopped within a block.

    Parameters
    ----------
    names : sequence of str
        Exact names of programs; none stops nothing.
    deadline : float
        Seconds after which they go on in any case.
    own : iterable of int
        Processes of the measurement; their trees are never stopped.
    read : callable
        Gives all processes.
    notify : callable
        Is told what could not be stopped, and of an early end.

    Yields
    ------
    Pause
        What is stopped. Processes that were stopped before are left as they are.

    Raises
    ------
    ConfigError
        A deadline that is not above 0.
    EngineError
        The watchdog does not start; nothing is stopped then.
    """
    if not 0 < deadline < math.inf:
        raise ConfigError(
            f"pause: the deadline must be above 0 seconds, got {deadline}", param="deadline"
        )
    pause = Pause(tuple(names), deadline)
    chosen = _chosen(pause.names, read(), (os.getpid(), *own)) if names else []
    if not chosen:
        yield pause
        return
    with _held(pause, chosen, notify):
        yield pause


@contextmanager
def _held(pause: Pause, chosen: list[Process], notify: Notify) -> Iterator[None]:
    """Keep processes stopped; the watchdog has their list before the first of them is."""
    stopped: list[_Stopped] = [(process.pid, resumer.identity(process.pid)) for process in chosen]
    watchdog = _start(stopped, pause.deadline)
    ending = threading.Event()

    def follow() -> None:
        status = watchdog.wait()
        if not ending.is_set():
            resumer.resume(stopped)
            pause.ended_early = _early(status, pause.deadline)
            notify(pause.ended_early)

    follower = threading.Thread(target=follow, name="mlxcel-pause", daemon=True)
    follower.start()
    try:
        pause.stop(chosen)
        if watchdog.poll() is not None:  # it ended before there was anything to let go on
            resumer.resume(stopped)
        for item in pause.report()["refused"]:
            notify(f"{item['name']} (pid {item['pid']}) is not paused: {item['why']}")
        yield
    finally:
        ending.set()
        resumer.resume(stopped)
        _close(watchdog)
        follower.join()


def _chosen(
    names: tuple[str, ...], processes: Sequence[Process], own: Sequence[int]
) -> list[Process]:
    ours = own_tree(processes, own)
    return [
        process
        for process in processes
        if process.name in names
        and process.pid > 1
        and process.pid not in ours
        and not process.stopped
    ]


def _start(stopped: list[_Stopped], deadline: float) -> subprocess.Popen[bytes]:
    """Start the watchdog; it is ready when this returns."""
    order: resumer.Order = {"parent": os.getpid(), "deadline": deadline, "stopped": stopped}
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(resumer.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    # A program that hangs before it is ready must not hang the benchmark.
    timer = threading.Timer(_START_SECONDS, watchdog.kill)
    timer.start()
    try:
        with suppress(BrokenPipeError):
            watchdog.stdin.write(json.dumps(order).encode() + b"\n")
            watchdog.stdin.flush()
        answer = watchdog.stdout.readline()
    finally:
        timer.cancel()
    if answer != b"ready\n":
        _close(watchdog)
        raise EngineError(
            f"the watchdog of paused processes does not start (status {watchdog.returncode}); "
            "nothing was paused; measure without --pause-indexers"
        )
    return watchdog


def _close(watchdog: subprocess.Popen[bytes]) -> None:
    """End the watchdog, which lets everything go on once more."""
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    with suppress(BrokenPipeError):
        watchdog.stdin.close()
    try:
        watchdog.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:  # someone has stopped it
        watchdog.kill()
        watchdog.wait()
    watchdog.stdout.close()


def _early(status: int, deadline: float) -> str:
    if status == resumer.AT_DEADLINE:
        return f"paused programs went on after the deadline of {deadline:g} s"
    return f"paused programs went on: their watchdog ended with status {status}"
