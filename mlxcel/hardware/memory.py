"""How much memory there is and how much of it is free, within container limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mlxcel.hardware.cgroup import Reader, memory_headroom, memory_limit, read_text

__all__ = ["Command", "available_bytes", "device_bytes", "run_command", "total_bytes"]

Command = Callable[[tuple[str, ...]], str | None]
"""Output of a command, or ``None`` when it is missing or fails."""


def run_command(words: tuple[str, ...]) -> str | None:
    """Output of a short command without its outer blanks, or ``None`` if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _meminfo(read: Reader, field: str) -> int | None:
    found = re.search(rf"^{field}:\s+(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def total_bytes(
    *, system: str = sys.platform, read: Reader = read_text, run: Command = run_command
) -> int:
    """Memory this process may use at most.

    Parameters
    ----------
    system : str
        As ``sys.platform``.
    read, run : callable
        How files are read and commands run; tests pass their own.

    Returns
    -------
    int
        Bytes: the machine's memory or the container's limit, whichever is less.
    """
    if system == "darwin":
        size = run(("sysctl", "-n", "hw.memsize"))
        return int(size) if size and size.isdigit() else _by_sysconf()
    machine = _meminfo(read, "MemTotal")
    machine = _by_sysconf() if machine is None else machine
    limit = memory_limit(read)
    return machine if limit is None else min(machine, limit)


def available_bytes(
    *, system: str = sys.platform, read: Reader = read_text, run: Command = run_command
) -> int:
    """Memory that can still be taken without swapping or being killed.

    Parameters are those of `total_bytes`.

    Returns
    -------
    int
        Bytes: what the machine has left or the container has left, whichever is less.
    """
    total = total_bytes(system=system, read=read, run=run)
    if system == "darwin":
        free = _darwin_free(run(("vm_stat",)) or "")
        return total if free is None else min(total, free)
    free = _meminfo(read, "MemAvailable")
    free = total if free is None else min(total, free)
    room = memory_headroom(read)
    return free if room is None else min(free, room)


def device_bytes(backend: str) -> int:
    """Bytes of memory that MLX can still take on a backend; imports MLX for ``"cuda"``."""
    if backend == "cuda":
        import mlx.core as mx

        info: Any = mx.device_info()
        free = info.get("free_memory", info.get("total_memory", info.get("memory_size", 0)))
        return int(free * 0.95)
    return available_bytes()


def _darwin_free(text: str) -> int | None:
    """Bytes of free, inactive, speculative and purgeable pages in the output of vm_stat."""
    page = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"Pages (?:free|inactive|speculative|purgeable):\s+(\d+)", text)
    return int(page[1]) * sum(map(int, pages)) if page and pages else None


def _by_sysconf() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
