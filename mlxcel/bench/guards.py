"""What keeps a measurement honest: one at a time, on a quiet host, watched all through.

The order matters, so there is one way in (`guarded`): the lock first, then the pause of
indexers, inside it the wait for a quiet host (outside it would wait for the very programs that
are to be paused), then the watch, then the measurement.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxcel.bench.host_lock import benchmark_lock
from mlxcel.bench.pause import DEADLINE_SECONDS, Pause, paused
from mlxcel.bench.processes import ReadProcesses, read_processes
from mlxcel.bench.watch import Clock, Notify, Sampler, Watch, wait_until_quiet
from mlxcel.decide.contention import Contention, WatchLimits
from mlxcel.decide.quiet import QuietLimits, skipped

__all__ = ["GuardOptions", "Guards", "System", "guarded"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Which guards, and how strict.

    Attributes
    ----------
    folder : Path
        The user's cache folder, for the lock.
    quiet : QuietLimits or None
        What to wait for before; ``None`` does not wait, and the record says so.
    watch : WatchLimits
        What spoils the run.
    pause : tuple of str
        Programs to keep stopped (`mlxcel.bench.pause.INDEXERS`); none by default.
    pause_deadline : float
        Seconds after which these go on in any case.
    """

    folder: Path
    quiet: QuietLimits | None = field(default_factory=QuietLimits)
    watch: WatchLimits = field(default_factory=WatchLimits)
    pause: tuple[str, ...] = ()
    pause_deadline: float = DEADLINE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How processes and time are seen; tests pass their own.

    Attributes
    ----------
    read : callable
        Gives all processes.
    clock, sleep : callable
        Steady seconds, and how to let them pass.
    """

    read: ReadProcesses = read_processes
    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Guards:
    """The guards of a measurement that runs, or has run."""

    def __init__(self, quiet: dict[str, Any], pause: Pause, watch: Watch) -> None:
        self._quiet = quiet
        self._pause = pause
        self._watch = watch

    def contention(self, since: float = -math.inf, until: float = math.inf) -> Contention:
        """Whether other processes disturbed an interval; everything so far by default.

        Parameters
        ----------
        since, until : float
            Seconds of the clock that the guards run by (``time.monotonic``).

        Notes
        -----
        Takes one more look at the processes, so ask between timed runs, not within.
        """
        self._watch.look()
        return self._watch.contention(since, until)

    def report(self) -> dict[str, Any]:
        """Everything, as JSON for ``provenance.guards`` of a record.

        Returns
        -------
        dict
            ``quiet``: report of the gate, with what was paused as ``pause``. ``contention``:
            report of the watch, up to its last look.
        """
        pause = self._pause.report() if self._pause.names else None
        return {"quiet": {**self._quiet, "pause": pause}, "contention": self._watch.report()}


@contextmanager
def guarded(
    options: GuardOptions,
    *,
    own: Iterable[int] = (),
    system: System | None = None,
    notify: Notify = log.warning,
) -> Iterator[Guards]:
    """Run a measurement under all guards.

    Parameters
    ----------
    options : GuardOptions
        Which, and how strict.
    own : iterable of int
        Processes that belong to the measurement without being children of this one, such as
        an engine process that is asked through a socket.
    system : System, optional
        How processes and time are seen.
    notify : callable
        Is told what is waited for, and every warning.

    Yields
    ------
    Guards
        Its `Guards.report` is complete after the block too.

    Raises
    ------
    CapacityError
        Another benchmark runs on this host.
    ConfigError
        The lock cannot be taken in the folder.
    LoadError
        The table of processes cannot be read.
    EngineError
        The watchdog of paused programs does not start.
    """
    use = system or System()
    ours = (os.getpid(), *own)
    with (
        benchmark_lock(options.folder),
        paused(
            options.pause, deadline=options.pause_deadline, own=ours, read=use.read, notify=notify
        ) as pause,
    ):
        if options.quiet is None:
            quiet = skipped()
        else:
            quiet = wait_until_quiet(
                Sampler(use.read, ours, use.clock),
                options.quiet,
                clock=use.clock,
                sleep=use.sleep,
                notify=notify,
            )
        with Watch(use.read, ours, options.watch, use.clock) as watch:
            yield Guards(quiet, pause, watch)
