"""Limits that a container puts on this process: processor quota and memory, v1 and v2.

Reads text files through a function that is passed in; ``None`` means "no limit found".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Reader", "cpu_quota", "memory_headroom", "memory_limit", "read_text", "usable_cores"]

Reader = Callable[[str], str | None]
"""Text of a file, or ``None`` when it cannot be read."""

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # version 1 says "none" by a number near 2**63


def read_text(path: str) -> str | None:
    """Text of a file, or ``None`` when it is missing or may not be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _levels(read: Reader, controller: str) -> Iterator[tuple[str, bool]]:
    """Folders of our group and its parents, innermost first, and whether they are version 2."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        second = number == "0" and not controllers
        if not second and controller not in controllers.split(","):
            continue
        base = _ROOT if second else f"{_ROOT}/{controller}"
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:depth]]), second


def _number(read: Reader, path: str) -> int | None:
    text = (read(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _limits(read: Reader) -> Iterator[tuple[str, bool, int]]:
    for folder, second in _levels(read, "memory"):
        name = "memory.max" if second else "memory.limit_in_bytes"
        limit = _number(read, f"{folder}/{name}")
        if limit is not None:
            yield folder, second, limit


def memory_limit(read: Reader = read_text) -> int | None:
    """Bytes this process's group may use, the tightest of all levels; ``None`` without one."""
    return min((limit for _, _, limit in _limits(read)), default=None)


def memory_headroom(read: Reader = read_text) -> int | None:
    """Bytes left under the limits, the least of all levels; ``None`` without a limit.

    File pages that the kernel would drop first count as free.
    """
    left: list[int] = []
    for folder, second, limit in _limits(read):
        used = _number(read, f"{folder}/{'memory.current' if second else 'memory.usage_in_bytes'}")
        field = "inactive_file" if second else "total_inactive_file"
        stat = re.search(rf"^{field} (\d+)$", read(f"{folder}/memory.stat") or "", re.MULTILINE)
        if used is not None:
            left.append(max(0, limit - used + (int(stat[1]) if stat else 0)))
    return min(left, default=None)


def cpu_quota(read: Reader = read_text) -> float | None:
    """Processors this process's group may use on average; ``None`` without a quota."""
    quotas: list[float] = []
    for folder, second in _levels(read, "cpu"):
        if second:
            words = (read(f"{folder}/cpu.max") or "").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [(read(f"{folder}/{name}") or "").strip() for name in names]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def usable_cores(read: Reader = read_text) -> int:
    """Processors this process can really use: its affinity, and the quota rounded up."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cpu_quota(read)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))
