"""Folders in the user's cache that are either complete or absent.

A folder is built beside its final place and renamed when done; a manifest with the
source's digest and the size of every file says whether a folder found later is the
one wanted. Nothing here knows what is inside.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxcel.errors import LoadError

__all__ = ["CONVERTER_VERSION", "Progress", "build", "is_current", "locked", "temporary"]

Progress = Callable[[str, int, int], None]

CONVERTER_VERSION = 1
MANIFEST = "mlxcel.json"
_STALE_SECONDS = 24 * 3600


def is_current(folder: Path, source: str) -> bool:
    """Whether ``folder`` was completed from ``source`` by this converter version.

    Parameters
    ----------
    folder : Path
        A folder made by `build`, or anything else (then the answer is False).
    source : str
        Digest of what the folder should have been made from.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        files = manifest["files"]
        if manifest["source"] != source or manifest["converter"] != CONVERTER_VERSION:
            return False
        return bool(files) and all(
            (folder / name).stat().st_size == size for name, size in files.items()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


@contextmanager
def build(final: Path, source: str) -> Iterator[Path]:
    """Give a temporary folder that takes the place of ``final`` when the block ends well.

    Parameters
    ----------
    final : Path
        Where the folder shall appear, in one step.
    source : str
        Digest written into the manifest.

    Raises
    ------
    LoadError
        The folder cannot be written; names it and the cause.
    """
    with temporary(final) as temp:
        yield temp
        _write_manifest(temp, source)
        temp.chmod(0o755)
        _publish(temp, final, source)


@contextmanager
def temporary(final: Path) -> Iterator[Path]:
    """Give a temporary folder beside ``final``, removed at the end if it is still there.

    Raises
    ------
    LoadError
        A file operation in the block failed; names the folder and the cause.
    """
    temp = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final.parent)
        temp = Path(tempfile.mkdtemp(prefix=f".{final.name}.tmp-", dir=final.parent))
        yield temp
    except OSError as error:
        raise LoadError(
            f"cannot write {final}: {error.strerror or error}; free space there or set "
            "MLXCEL_CACHE_DIR to a folder that can be written"
        ) from error
    finally:
        if temp is not None:
            shutil.rmtree(temp, ignore_errors=True)


@contextmanager
def locked(final: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock of ``final`` among processes; waits for as long as it takes.

    Parameters
    ----------
    final : Path
        The folder to be built; its lock file lies beside it and stays there.
    progress : callable, optional
        Told once when the lock has to be waited for.
    """
    path = final.parent / f".{final.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("ab")
    except OSError as error:
        raise LoadError(
            f"cannot write {path}: {error.strerror}; set MLXCEL_CACHE_DIR to a folder that "
            "can be written"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress("waiting for another process", 0, 0)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            # Some network file systems have no locks; the rename alone keeps folders whole.
            pass
        yield


def _write_manifest(folder: Path, source: str) -> None:
    """Record every file's size; written last, so an interrupted folder has none."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {"source": source, "converter": CONVERTER_VERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _publish(temp: Path, final: Path, source: str) -> None:
    """Rename ``temp`` to ``final``; an equal folder of another process is left in place."""
    for _ in range(16):
        try:
            temp.rename(final)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if is_current(final, source):
            return
        aside = temp.with_name(f"{temp.name}-old")
        with suppress(FileNotFoundError):
            final.rename(aside)
        _remove(aside)
    raise OSError(errno.EEXIST, "another process keeps replacing it")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove what killed processes left behind; a day is longer than any conversion."""
    oldest = time.time() - _STALE_SECONDS
    for path in parent.glob(".*.tmp-*"):
        with suppress(OSError):
            if os.lstat(path).st_mtime < oldest:
                _remove(path)
