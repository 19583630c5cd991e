"""Where an engine listens: paths of Unix sockets, and who may have one."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mlxcel.config import Settings
from mlxcel.errors import CapacityError, ConfigError

__all__ = ["Listener", "checked_path", "default_socket"]

LIMIT = 103 if sys.platform == "darwin" else 107
"""Bytes of a path that the system has room for (``sun_path``, less the final zero)."""

BACKLOG = 1024
DYING_SECONDS = 2.0
"""How long a process whose supervisor has just died may still answer."""


def default_socket(environ: Mapping[str, str], settings: Settings) -> Path:
    """``$XDG_RUNTIME_DIR/mlxcel.sock``, else ``mlxcel.sock`` in the cache folder."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base) if base and Path(base).is_absolute() else settings.cache_dir
    return folder / "mlxcel.sock"


def checked_path(path: str | Path) -> Path:
    """The path as it is, if a socket can have it.

    Raises
    ------
    ConfigError
        It is longer than the system's limit.
    """
    size = len(os.fsencode(path))
    if size > LIMIT:
        raise ConfigError(
            f"the socket's path {str(path)!r} has {size} bytes, and Unix sockets have room for "
            f"{LIMIT}: choose a shorter one",
            param="socket",
        )
    return Path(path)


class Listener:
    """A listening socket that this process alone may have at its path.

    A lock beside it (``PATH.lock``) tells a socket in use from one whose owner has died,
    which is replaced. The socket's file has mode 0600.

    Parameters
    ----------
    path : Path
        Where; its folder is made.

    Raises
    ------
    ConfigError
        The path is too long, or not one for a socket.
    CapacityError
        Another engine listens there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = checked_path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self._take_lock()
        except OSError as error:
            said = f"no socket can be made at {path}: {error}"
            raise ConfigError(said, param="socket") from error
        try:
            self.socket = self._bind()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and take the file away. Idempotent."""
        if self.socket.fileno() < 0:
            return
        with suppress(OSError):
            self.path.unlink()
        self.socket.close()
        os.close(self._lock)

    def _take_lock(self) -> int:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise self._taken() from None
        return lock

    def _bind(self) -> socket.socket:
        self._clear()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the file never has another mode than 0600
        try:
            made.bind(str(self.path))
        except OSError as error:
            made.close()
            raise ConfigError(
                f"no socket can be made at {self.path}: {error}", param="socket"
            ) from error
        finally:
            os.umask(before)
        made.listen(BACKLOG)
        return made

    def _clear(self) -> None:
        """Take away a socket that nobody listens at."""
        if not self.path.exists():
            return
        if not self.path.is_socket():
            raise ConfigError(
                f"{self.path} is no socket and is left alone: choose another path", param="socket"
            )
        end = time.monotonic() + DYING_SECONDS
        while _answers(self.path):
            if time.monotonic() > end:
                raise self._taken()
            time.sleep(0.05)
        self.path.unlink()

    def _taken(self) -> CapacityError:
        return CapacityError(
            f"another engine listens at {self.path}: stop it, or choose another path with --socket",
            param="socket",
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True
