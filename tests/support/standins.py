"""Real processes that stand in for indexers: sleepers under names of their own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxcel.bench.processes import read_processes

__all__ = ["eventually", "is_stopped", "standin"]


@contextmanager
def standin(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name of at most 15 letters that does nothing for a minute."""
    program = folder / name
    if not program.exists():
        shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([str(program), "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return any(process.stopped for process in read_processes() if process.pid == pid)


def eventually(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether something becomes true within some time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
