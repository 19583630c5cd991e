"""Lets stopped processes go on, whatever becomes of the one that stopped them.

Run as a program of its own, in a session of its own: it needs nothing but the standard
library and survives a kill of the benchmark. It reads one line of JSON from standard input
(`Order`), answers ``ready``, and lets the processes go on as soon as its input ends, its
parent is gone, it is told to end, or the deadline passes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypedDict

__all__ = ["AT_DEADLINE", "Order", "identity", "main", "resume"]

AT_DEADLINE = 3
"""Exit status after a deadline."""

_POLL_SECONDS = 0.5
"""How often the parent is looked for; its end usually shows at once, by the closed input."""


class Order(TypedDict):
    """What the program is told.

    Attributes
    ----------
    parent : int
        Process that stops the others.
    deadline : float
        Seconds after which they go on in any case.
    stopped : list of (int, str or None)
        Number and `identity` of every process that is or will be stopped.
    """

    parent: int
    deadline: float
    stopped: list[tuple[int, str | None]]


def identity(pid: int) -> str | None:
    """What tells a process from a later one of the same number; ``None`` if it cannot be said.

    The start in clock ticks on Linux, as a date elsewhere.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if os.path.isdir("/proc/self"):
        return None
    try:
        words = ("ps", "-o", "lstart=", "-p", str(pid))
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def resume(stopped: Iterable[tuple[int, str | None]]) -> int:
    """Let processes go on (SIGCONT); how many were there.

    Those whose number now belongs to another process are left alone; where that cannot be
    told, the signal is sent: to a process that runs it means nothing.
    """
    count = 0
    for pid, known in stopped:
        now = identity(pid)
        if known is not None and now is not None and now != known:
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
            count += 1
    return count


def _end(*_: Any) -> None:
    raise SystemExit(0)


def _wait(order: Order) -> int:
    """Wait for a reason to let them go on; the exit status."""
    end = time.monotonic() + order["deadline"]
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], min(left, _POLL_SECONDS))
        # Whatever comes means the end: nothing but the order is ever sent.
        if ready or os.getppid() != order["parent"]:
            return 0
    return AT_DEADLINE


def main() -> int:
    """Run the program; 0, or `AT_DEADLINE`."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    order: Order = json.loads(sys.stdin.readline())
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        return _wait(order)
    finally:
        resume(order["stopped"])


if __name__ == "__main__":
    raise SystemExit(main())
