"""Where a measured record comes from: machine, versions, commit, command, guards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mlxcel.decide.exactness import Level
from mlxcel.errors import LoadError

__all__ = [
    "ENVIRONMENT_PREFIXES",
    "DraftsCounted",
    "ExactnessNote",
    "KernelNote",
    "Provenance",
    "guard_complaints",
    "guards_ran",
]

ENVIRONMENT_PREFIXES = ("MLXCEL_", "OPENBLAS_", "OMP_", "MLX_")
"""Beginnings of the variables that a record keeps; no other variable is read."""

GUARDS = {"quiet": "the quiet gate before the runs", "contention": "the contention watch"}
"""Guards that a row needs to be published, and what people call them."""

DraftsCounted = Literal["proposed", "judged"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class KernelNote:
    """Form of the weights that was served, and what the kernel profile says of it."""

    form: str
    verdict: str | None


@dataclass(frozen=True, slots=True)
class ExactnessNote:
    """What the exactness probe found, of several widths the worst, and why."""

    level: Level
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """All that a figure depends on and the samples do not say.

    Attributes
    ----------
    memory_bytes : int
        Memory of the device that computes.
    system, python : str
        Operating system with machine type; Python's version.
    versions : tuple of pairs
        Name and version of what took part.
    commit : str or None
        Commit of the sources, 40 hex digits; ``None`` for an installed package.
    dirty : bool or None
        Whether files differed from that commit.
    command : tuple of str
        The command line, folders left out of its paths.
    environment : tuple of pairs
        Variables that begin with one of `ENVIRONMENT_PREFIXES`.
    blas : str
        What computes dense products on the CPU.
    kernel : KernelNote or None
        ``None`` where no weights were served.
    exactness : ExactnessNote or None
        ``None`` where nothing was verified.
    started : str
        UTC, as ``2026-11-30T21:05:00Z``.
    seconds : float
        What the campaign took.
    guards : mapping
        ``quiet`` and ``contention``, JSON objects; each says at least whether it ``ran``, and then
        whether it ``passed`` and, if not, the ``reason``.
    round_loop : int
        Version of the round loop.
    cost_only : bool
        Whether only times of passes were taken, with no text behind them.
    drafts : {"proposed", "judged"}
        What its counts call proposed: all drafts of a round, or, before 1 December 2026, only
        those up to the first that did not hold. Acceptance over the latter is not the field's.
    """

    memory_bytes: int
    system: str
    python: str
    versions: tuple[tuple[str, str], ...]
    commit: str | None
    dirty: bool | None
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    blas: str
    kernel: KernelNote | None
    exactness: ExactnessNote | None
    started: str
    seconds: float
    guards: Mapping[str, Any]
    round_loop: int
    cost_only: bool
    drafts: DraftsCounted = "proposed"

    def __post_init__(self) -> None:
        if (self.commit is None) != (self.dirty is None):
            raise LoadError("commit and dirty are given together or not at all")
        if self.commit is not None and not _COMMIT.fullmatch(self.commit):
            raise LoadError(f"commit {self.commit!r} must have 40 hexadecimal digits")
        for name, _ in self.environment:
            if not name.startswith(ENVIRONMENT_PREFIXES):
                raise LoadError(
                    f"environment: {name} does not belong into a record; keep variables that "
                    f"begin with {', '.join(ENVIRONMENT_PREFIXES)}"
                )
        _check_started(self.started)
        for name in GUARDS:
            if not isinstance(self.guards.get(name), Mapping):
                raise LoadError(f"guards: {name} is missing; say at least whether it ran")

    @property
    def day(self) -> str:
        """ISO date on which it began, UTC."""
        return self.started[:10]


def _check_started(text: str) -> None:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise LoadError(f"started {text!r} must be UTC as 2026-11-30T21:05:00Z") from None


def guard_complaints(guards: Mapping[str, Any]) -> tuple[str, ...]:
    """Why rows taken under these guards are not published; empty if nothing is against it.

    Parameters
    ----------
    guards : mapping
        See `Provenance`. What is not said to have passed has not.
    """
    found = []
    for name, what in GUARDS.items():
        note = guards.get(name) or {}
        if note.get("ran") is not True:
            found.append(f"not guarded: {what} did not run")
        elif note.get("passed") is not True:
            found.append(f"{what} tripped: {note.get('reason') or 'no reason was kept'}")
    return tuple(found)


def guards_ran(guards: Mapping[str, Any]) -> bool:
    """Whether all guards were at work, whatever they found."""
    return all((guards.get(name) or {}).get("ran") is True for name in GUARDS)
