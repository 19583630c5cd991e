"""Looks at other processes: before a measurement until it is quiet, and all through it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from mlxcel.bench.processes import ReadProcesses
from mlxcel.decide.contention import Contention, Sample, WatchLimits, judge_contention
from mlxcel.decide.host_load import Snapshot, foreign_loads
from mlxcel.decide.quiet import QuietGate, QuietLimits
from mlxcel.errors import MlxcelError

__all__ = ["Clock", "Notify", "Sampler", "Watch", "wait_until_quiet"]

log = logging.getLogger(__name__)

Clock = Callable[[], float]
Notify = Callable[[str], None]

_KEPT = 8
"""Busiest processes of a sample that are kept; more would only fill memory."""

_NEWS_SECONDS = 30.0
_SHORTEST_SECONDS = 0.01


class Sampler:
    """Takes the processor time that foreign processes used since the last look.

    Parameters
    ----------
    read : callable
        Gives all processes.
    own : iterable of int
        Processes of the measurement; their trees do not count.
    clock : callable
        Steady seconds.

    Notes
    -----
    Used from one thread at a time.
    """

    def __init__(self, read: ReadProcesses, own: Iterable[int], clock: Clock) -> None:
        self._read = read
        self._own = tuple(own)
        self._clock = clock
        self._last = self._snapshot()

    def take(self) -> Sample | None:
        """The time since the last look; ``None`` where the clock has not moved."""
        now, before = self._snapshot(), self._last
        if now.at <= before.at:
            return None
        self._last = now
        return Sample(before.at, now.at, foreign_loads(before, now, self._own)[:_KEPT])

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._clock(), self._read())


def wait_until_quiet(
    sampler: Sampler,
    limits: QuietLimits,
    *,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    notify: Notify = log.info,
) -> dict[str, Any]:
    """Wait until the host is quiet, or for as long as the limits allow.

    Parameters
    ----------
    sampler : Sampler
        Looks at the other processes; its clock is ``clock``.
    limits : QuietLimits
        What is quiet.
    clock, sleep : callable
        Steady seconds and how to let them pass.
    notify : callable
        Is told every half minute what is waited for, and the warning after a timeout.

    Returns
    -------
    dict
        `QuietGate.report`.
    """
    began, told = clock(), -math.inf
    gate = QuietGate(limits, began)
    while True:
        left = began + limits.timeout - clock() if limits.timeout else math.inf
        sleep(min(limits.sample_seconds, max(left, _SHORTEST_SECONDS)))
        sample = sampler.take()
        if sample is None:
            continue
        if gate.observe(sample.until, sample.loads) != "waiting":
            break
        if sample.until - told >= _NEWS_SECONDS:
            told = sample.until
            notify(_news(gate, sample))
    if gate.warning:
        notify(gate.warning)
    return gate.report()


def _news(gate: QuietGate, sample: Sample) -> str:
    text = f"waiting for a quiet host: {gate.missing:.0f} s more"
    if not sample.loads:
        return text
    busiest = sample.loads[0]
    return f"{text}; busiest is {busiest.name} (pid {busiest.pid}, {busiest.percent:.0f} %)"


class Watch:
    """A thread that samples other processes while something is measured.

    Its own processor time is that of our process and so does not count. It sleeps between
    looks; `report` tells what the looks themselves took.

    Parameters
    ----------
    read, own, clock
        As for `Sampler`.
    limits : WatchLimits
        What is busy, and how often to look.

    Notes
    -----
    `contention` and `report` may be called from any thread.
    """

    def __init__(
        self,
        read: ReadProcesses,
        own: Iterable[int],
        limits: WatchLimits,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._sampler = Sampler(read, own, clock)
        self._samples: list[Sample] = []
        self._spent = 0.0
        self._failure: str | None = None
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlxcel-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Take a sample now, so that what is judged next is known up to this moment.

        A look that fails ends the watch; `contention` then says so and has tripped.
        """
        with self._lock:
            began = self._clock()
            try:
                sample = self._sampler.take()
            except (MlxcelError, OSError, ValueError, IndexError) as error:
                self._failure = f"the watch on other processes failed: {error}"
                log.warning("%s", self._failure)
                self._end.set()
                return
            self._spent += self._clock() - began
            if sample is not None:
                self._samples.append(sample)

    def contention(self, since: float = -math.inf, until: float = math.inf) -> Contention:
        """What was found in an interval of the clock; all of it by default."""
        with self._lock:
            samples, failure = tuple(self._samples), self._failure
        found = judge_contention(samples, self.limits, since, until)
        if failure is None:
            return found
        return Contention(
            tripped=True,
            samples=found.samples,
            seconds=found.seconds,
            busy_seconds=found.busy_seconds,
            offenders=found.offenders,
            reason=failure,
        )

    def report(self) -> dict[str, Any]:
        """What was found in all, and with which limits, as JSON."""
        return {
            "limit_percent": self.limits.percent,
            "limit_share": self.limits.share,
            "sample_seconds": self.limits.sample_seconds,
            **self.contention().report(),
            "watch_seconds": round(self._spent, 4),
        }

    def _run(self) -> None:
        while not self._end.wait(self.limits.sample_seconds):
            self.look()
