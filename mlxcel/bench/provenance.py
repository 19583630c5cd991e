"""Finds out where figures come from: machine, versions, commit, command line, environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import mlxcel
from mlxcel.decide.provenance import (
    ENVIRONMENT_PREFIXES,
    ExactnessNote,
    KernelNote,
    Provenance,
)
from mlxcel.decide.records import ROUND_LOOP_VERSION, Host
from mlxcel.hardware.host import Host as Machine
from mlxcel.hardware.memory import Command, run_command

__all__ = [
    "collect",
    "commit_of",
    "public_environment",
    "record_host",
    "shown_command",
    "versions_of",
]

SOURCES = Path(mlxcel.__file__).resolve().parents[1]


def collect(
    machine: Machine,
    *,
    kernel: KernelNote | None,
    exactness: ExactnessNote | None,
    command: Sequence[str],
    environ: Mapping[str, str],
    started: datetime,
    seconds: float,
    guards: Mapping[str, Any],
    cost_only: bool = False,
) -> Provenance:
    """Put a provenance together.

    Parameters
    ----------
    machine : Machine
        This host, as `mlxcel.hardware.host.describe` says.
    kernel, exactness, guards, cost_only
        See `mlxcel.decide.provenance.Provenance`.
    command : sequence of str
        ``sys.argv``.
    environ : mapping of str to str
        All variables; few of them are kept.
    started : datetime
        When it began, UTC.
    seconds : float
        What it took.
    """
    commit, dirty = _own_commit()
    return Provenance(
        memory_bytes=memory_of(machine),
        system=machine.system,
        python=machine.python,
        versions=versions_of(machine),
        commit=commit,
        dirty=dirty,
        command=shown_command(command),
        environment=public_environment(environ),
        blas=machine.blas.name,
        kernel=kernel,
        exactness=exactness,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(seconds, 3),
        guards=guards,
        round_loop=ROUND_LOOP_VERSION,
        cost_only=cost_only,
    )


def versions_of(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Versions in the order of names; that of mlxcel also where it runs without being installed."""
    found = {name: text for name, text in machine.versions.items() if text}
    return tuple(sorted({**found, "mlxcel": mlxcel.__version__}.items()))


def record_host(machine: Machine) -> Host:
    """This host as records name it.

    The CPU of an Apple chip is not the GPU that the gate's table is about, and gets a name of
    its own.
    """
    chip = machine.chip
    generation: Any = None
    if machine.backend == "metal" and chip.startswith("Apple M"):
        generation = chip[6:8]
    elif machine.backend == "cpu" and chip.startswith("Apple"):
        chip = f"CPU {chip}"
    return Host(chip=chip, generation=generation, memory_gb=round(memory_of(machine) / 1e9, 1))


def commit_of(sources: Path, run: Command = run_command) -> tuple[str | None, bool | None]:
    """Commit of a source folder and whether files differ from it.

    Returns
    -------
    (str, bool) or (None, None)
        Nothing for a folder that git does not know, as an installed package is.
    """
    top = run(("git", "-C", str(sources), "rev-parse", "--show-toplevel"))
    # A package inside some other repository, in an environment for example, has no commit.
    if not top or Path(top).resolve() != sources.resolve():
        return None, None
    commit = run(("git", "-C", str(sources), "rev-parse", "HEAD"))
    changed = run(("git", "-C", str(sources), "status", "--porcelain"))
    return (commit, bool(changed)) if commit and changed is not None else (None, None)


@functools.cache
def _own_commit() -> tuple[str | None, bool | None]:
    """Of the sources of this process, which are read once too."""
    return commit_of(SOURCES)


def shown_command(command: Sequence[str]) -> tuple[str, ...]:
    """A command line without the folders of absolute paths."""
    return tuple(_without_folder(word) for word in command if word)


def public_environment(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that may change a figure; of paths the last part alone."""
    return tuple(
        (name, _without_folder(environ[name]))
        for name in sorted(environ)
        if name.startswith(ENVIRONMENT_PREFIXES)
    )


def _without_folder(text: str) -> str:
    option, equals, value = text.rpartition("=")
    path = Path(value)
    return f"{option}{equals}{path.name}" if path.is_absolute() else text


def memory_of(machine: Machine) -> int:
    """Bytes of the memory that the weights lie in."""
    return machine.gpu_memory_bytes or machine.memory_bytes

