"""Reads the system's table of processes: ``/proc`` on Linux, ``ps`` on macOS and elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from mlxcel.decide.host_load import Process
from mlxcel.errors import LoadError
from mlxcel.hardware.cgroup import Reader, read_text
from mlxcel.hardware.memory import Command, run_command

__all__ = ["ReadProcesses", "parse_ps", "parse_stat", "read_processes"]

ReadProcesses = Callable[[], tuple[Process, ...]]
"""Gives all processes of this moment."""

PS = ("ps", "-A", "-o", "pid=,ppid=,stat=,time=,comm=")

_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def read_processes(
    *,
    system: str = sys.platform,
    read: Reader = read_text,
    run: Command = run_command,
    entries: Callable[[], list[str]] = lambda: os.listdir("/proc"),
) -> tuple[Process, ...]:
    """All processes that this user can see.

    Parameters
    ----------
    system : str
        As ``sys.platform``.
    read, run, entries : callable
        Read a file, run a command, list ``/proc``; tests pass their own.

    Returns
    -------
    tuple of Process
        In a container those of the container only.

    Raises
    ------
    LoadError
        The system shows no process at all.
    """
    if system.startswith("linux"):
        texts = (read(f"/proc/{name}/stat") for name in entries() if name.isdigit())
        # A process may end between listing and reading: it then has no text.
        found = [parse_stat(text) for text in texts if text]
        source = "/proc"
    else:
        found = [parse_ps(line) for line in (run(PS) or "").splitlines() if line.strip()]
        source = " ".join(PS)
    if not found:
        raise LoadError(
            f"{source} shows no process: other load cannot be watched; measure without guards, "
            "or where the table of processes can be read"
        )
    return tuple(found)


def parse_stat(text: str, ticks: int = os.sysconf("SC_CLK_TCK")) -> Process:
    """One process from its ``/proc/PID/stat``.

    Parameters
    ----------
    text : str
        The file's text. The name, in brackets, may itself hold blanks and brackets.
    ticks : int
        Ticks of processor time per second.
    """
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    user, system, child_user, child_system = (int(value) / ticks for value in fields[11:15])
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        name=name,
        started=fields[19],
        stopped=fields[0] in "Tt",
        seconds=user + system,
        reaped=child_user + child_system,
    )


def parse_ps(line: str) -> Process:
    """One process from a line of `PS`.

    Raises
    ------
    LoadError
        The line has another form; names it.
    """
    words = line.split(None, 4)
    time = _TIME.fullmatch(words[3]) if len(words) == 5 else None
    if time is None:
        raise LoadError(f"ps gave {line!r}, not pid, parent, state, time and name")
    days, hours, minutes, seconds = (float(part or 0) for part in time.groups())
    return Process(
        pid=int(words[0]),
        parent=int(words[1]),
        name=os.path.basename(words[4].strip()),
        started="",
        stopped="T" in words[2],
        seconds=((days * 24 + hours) * 60 + minutes) * 60 + seconds,
    )
