"""A host whose processes and clock are made up: time passes only when someone sleeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.decide.host_load import Process

__all__ = ["OWN", "SimulatedHost"]

OWN = 100
"""Number of the process that measures."""

Load = float | Callable[[float], float]


@dataclass
class _Program:
    name: str
    parent: int
    load: Load
    used: float = 0.0

    def percent(self, now: float) -> float:
        return self.load(now) if callable(self.load) else self.load


class SimulatedHost:
    """Programs with a load in percent of a core, constant or over time."""

    def __init__(self, step: float = 1.0) -> None:
        self.now = 0.0
        self.reads = 0
        self._step = step
        self._programs = {1: _Program("init", 0, 0.0), OWN: _Program("bench", 1, 100.0)}

    def start(self, name: str, load: Load, pid: int, parent: int = 1) -> None:
        """Let a program run from now on."""
        self._programs[pid] = _Program(name, parent, load)

    def end(self, pid: int) -> None:
        """Let a program end."""
        del self._programs[pid]

    def clock(self) -> float:
        """Seconds since the host began."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            span = min(self._step, end - self.now)
            for program in self._programs.values():
                program.used += span * program.percent(self.now) / 100
            self.now += span

    def read(self) -> tuple[Process, ...]:
        """All processes, as `mlxcel.bench.processes.read_processes` gives them."""
        self.reads += 1
        return tuple(
            Process(
                pid=pid,
                parent=program.parent,
                name=program.name,
                started=f"s{pid}",
                stopped=False,
                seconds=program.used,
            )
            for pid, program in self._programs.items()
        )
