"""Whether other processes disturbed a measurement, and which."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlxcel.decide.host_load import Load
from mlxcel.decide.quiet import BUSY_PERCENT
from mlxcel.errors import ConfigError

__all__ = ["Contention", "Offender", "Sample", "WatchLimits", "judge_contention"]

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """When a run counts as disturbed; the defaults are those of lablup/mlxcel#1215.

    Attributes
    ----------
    percent : float
        Percent of a core from which on a foreign process is busy.
    share : float
        Share of the time, 0 to 1, above which busy processes spoil the run. What is below is
        noted only: isolated spikes are everywhere.
    sample_seconds : float
        Time between two looks; the processor time between them is counted whole.

    Raises
    ------
    ConfigError
        A value out of bounds.
    """

    percent: float = BUSY_PERCENT
    share: float = 0.2
    sample_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ConfigError(
                f"contention watch: share must be 0 to below 1, got {self.share}", param="share"
            )
        for name in ("percent", "sample_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"contention watch: {name} must be above 0, got {getattr(self, name)}",
                    param=name,
                )


@dataclass(frozen=True, slots=True)
class Sample:
    """What foreign processes used from ``since`` to ``until`` (seconds of one clock)."""

    since: float
    until: float
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class Offender:
    """One busy process: its highest load, and for how long it was busy."""

    name: str
    pid: int
    percent: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What a watch found in an interval.

    Attributes
    ----------
    tripped : bool
        Whether figures of this interval must not be published.
    samples : int
        Looks in the interval.
    seconds, busy_seconds : float
        Time looked at, and the part of it with a busy process.
    offenders : tuple of Offender
        Busy processes, those busy for longest first.
    reason : str or None
        What tripped it, for people.
    """

    tripped: bool
    samples: int
    seconds: float
    busy_seconds: float
    offenders: tuple[Offender, ...]
    reason: str | None

    def report(self) -> dict[str, Any]:
        """The same as JSON for a record's provenance.

        Returns
        -------
        dict
            ``ran``, ``passed`` and ``reason`` say whether rows may be published.
        """
        return {
            "ran": self.samples > 0,
            "passed": not self.tripped,
            "reason": self.reason,
            "samples": self.samples,
            "seconds": round(self.seconds, 3),
            "busy_seconds": round(self.busy_seconds, 3),
            "offenders": [
                {
                    "name": item.name,
                    "pid": item.pid,
                    "percent": round(item.percent, 1),
                    "seconds": round(item.seconds, 3),
                }
                for item in self.offenders
            ],
        }


def judge_contention(
    samples: Iterable[Sample],
    limits: WatchLimits,
    since: float = -math.inf,
    until: float = math.inf,
) -> Contention:
    """Judge an interval, such as that of one row.

    Parameters
    ----------
    samples : iterable of Sample
        All that a watch took.
    limits : WatchLimits
        What is busy, and how much of it is too much.
    since, until : float
        The interval, in seconds of the samples' clock; everything by default. A sample counts
        with the part of it that is inside.

    Returns
    -------
    Contention
        Tripped also where there is no sample at all: nobody looked.
    """
    seconds = busy = 0.0
    count = 0
    worst: dict[tuple[int, str], tuple[float, float]] = {}
    for sample in samples:
        span = min(sample.until, until) - max(sample.since, since)
        if span <= 0:
            continue
        count, seconds = count + 1, seconds + span
        loud = [load for load in sample.loads if load.percent >= limits.percent]
        busy += span if loud else 0.0
        for load in loud:
            percent, lasted = worst.get((load.pid, load.name), (0.0, 0.0))
            worst[load.pid, load.name] = (max(percent, load.percent), lasted + span)
    found = [Offender(name, pid, *values) for (pid, name), values in worst.items()]
    offenders = tuple(sorted(found, key=lambda item: (-item.seconds, -item.percent, item.pid)))
    tripped = count == 0 or busy > limits.share * seconds
    return Contention(
        tripped=tripped,
        samples=count,
        seconds=seconds,
        busy_seconds=busy,
        offenders=offenders,
        reason=_reason(offenders, busy, seconds) if tripped else None,
    )


def _reason(offenders: tuple[Offender, ...], busy: float, seconds: float) -> str:
    if not seconds:
        return "other processes were not watched in this interval"
    named = ", ".join(
        f"{item.name} (pid {item.pid}, up to {item.percent:.0f} % of a core for "
        f"{item.seconds:.0f} s)"
        for item in offenders[:_NAMED]
    )
    more = len(offenders) - _NAMED
    tail = f" and {more} more" if more > 0 else ""
    return f"other processes were busy for {busy:.0f} of {seconds:.0f} s: {named}{tail}"
