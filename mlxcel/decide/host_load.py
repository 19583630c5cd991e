"""How much processor time other processes took between two looks at them. Values only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = ["Load", "Process", "Snapshot", "foreign_loads", "own_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process as the system's table shows it.

    Attributes
    ----------
    pid, parent : int
        Its number and that of its parent.
    name : str
        Name of the program, without folder and arguments.
    started : str
        Tells two processes apart that had one number after each other; empty where the
        system's table does not say.
    stopped : bool
        Whether it is stopped by a signal.
    seconds : float
        Processor time it has used.
    reaped : float
        Processor time of its children that have ended and that it has waited for, with theirs.
        0 where the system does not say.
    """

    pid: int
    parent: int
    name: str
    started: str
    stopped: bool
    seconds: float
    reaped: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All processes at one moment of a steady clock, in seconds."""

    at: float
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What one process used over an interval, in percent of one core."""

    name: str
    pid: int
    percent: float


def own_tree(processes: Iterable[Process], own: Iterable[int]) -> frozenset[int]:
    """Numbers of processes that belong to the measurement.

    Parameters
    ----------
    processes : iterable of Process
        All processes.
    own : iterable of int
        Processes known to belong to it.

    Returns
    -------
    frozenset of int
        These, all that descend from them (engine processes), and those that they descend
        from (shell, make, test runner), but not what else descends from the latter.
    """
    known = {process.pid: process for process in processes}
    children: dict[int, list[int]] = defaultdict(list)
    for process in known.values():
        children[process.parent].append(process.pid)
    tree: set[int] = set()
    roots = tuple(own)
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in tree:
            tree.add(pid)
            waiting += children[pid]
    for pid in roots:
        above = known.get(pid)
        while above is not None and (above := known.get(above.parent)) and above.pid not in tree:
            tree.add(above.pid)
    return frozenset(tree)


def foreign_loads(before: Snapshot, after: Snapshot, own: Iterable[int]) -> tuple[Load, ...]:
    """What every process outside of the measurement used between two snapshots.

    Children that began and ended in between are counted for the process that waited for
    them, where the system tells: a build of many short compilers is a load like any other.

    Parameters
    ----------
    before, after : Snapshot
        In the order they were taken.
    own : iterable of int
        As for `own_tree`.

    Returns
    -------
    tuple of Load
        Busiest first; processes that used nothing are left out.

    Raises
    ------
    ConfigError
        No time has passed between the two.
    """
    span = after.at - before.at
    if not span > 0:
        raise ConfigError(f"no time passed between two snapshots: {before.at} s, {after.at} s")
    roots = tuple(own)
    ours = own_tree(before.processes, roots) | own_tree(after.processes, roots)
    earlier = {_key(process): process for process in before.processes}
    left = {_key(process) for process in after.processes}
    ended = _ended(before.processes, left)
    loads = [
        Load(p.name, p.pid, 100 * _used(p, earlier.get(_key(p)), ended.get(p.pid, 0.0)) / span)
        for p in after.processes
        if p.pid not in ours
    ]
    return _busiest_first([load for load in loads if load.percent > 0])


def _ended(processes: Iterable[Process], left: Collection[tuple[int, str]]) -> Mapping[int, float]:
    """What the ended children of each process had used at the first look, with theirs.

    A wrapper that ends with its program hands the program's time on to its own parent.
    """
    gone = {process.pid: process for process in processes if _key(process) not in left}
    used: dict[int, float] = defaultdict(float)
    for process in gone.values():
        parent, seen = process.parent, {process.pid}
        used[parent] += process.seconds + process.reaped
        while parent in gone and parent not in seen:
            seen.add(parent)
            parent = gone[parent].parent
            used[parent] += process.seconds + process.reaped
    return used


def _key(process: Process) -> tuple[int, str]:
    return process.pid, process.started


def _used(now: Process, before: Process | None, ended: float) -> float:
    """Seconds used since; ``ended`` is what its ended children had used at the first look."""
    if before is None or now.seconds < before.seconds:
        return now.seconds + now.reaped
    return now.seconds - before.seconds + max(0.0, now.reaped - before.reaped - ended)


def _busiest_first(loads: Sequence[Load]) -> tuple[Load, ...]:
    return tuple(sorted(loads, key=lambda load: (-load.percent, load.pid)))
