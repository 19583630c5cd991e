"""One benchmark at a time on a host: a lock that says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mlxcel.errors import CapacityError, ConfigError

__all__ = ["benchmark_lock", "lock_path"]


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def lock_path(folder: Path) -> Path:
    """The lock's file: of this host, since a cache folder may be shared over a network."""
    return folder / f"benchmark-{os.uname().nodename}.lock"


@contextmanager
def benchmark_lock(folder: Path, *, now: Callable[[], str] = _utc_now) -> Iterator[Path]:
    """Hold the host for one benchmark.

    The system drops the lock with the last process that holds it, however that ends; the file
    stays. Engine processes started afresh do not inherit it.

    Parameters
    ----------
    folder : Path
        The user's cache folder; made where it is missing.
    now : callable
        Gives the time that is written into the file (ISO 8601, UTC).

    Yields
    ------
    Path
        The file.

    Raises
    ------
    CapacityError
        Another benchmark holds it; names its process and when it began.
    ConfigError
        The file cannot be made or locked there.
    """
    path = lock_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise _unusable(path, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise CapacityError(
                f"another benchmark runs on this host: {_holder(handle.read())} ({path}); wait "
                "until it has ended, two at once would measure each other"
            ) from None
        except OSError as error:
            raise _unusable(path, error) from error
        handle.truncate(0)
        handle.write(json.dumps({"pid": os.getpid(), "started": now()}))
        handle.flush()
        try:
            yield path
        finally:
            # So that a later holder is not taken for this one before it has written its own.
            handle.truncate(0)


def _holder(text: str) -> str:
    try:
        values = json.loads(text)
        return f"process {int(values['pid'])}, since {values['started']}"
    except (ValueError, LookupError, TypeError):
        return "a process that has not said yet which"


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be locked: {error.strerror or error}; set MLXCEL_CACHE_DIR to a folder of "
        "this host that can be written",
        param="cache_dir",
    )
