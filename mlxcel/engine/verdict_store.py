"""Verdicts of the adaptive policy on disk, one file per key, replaced in one step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mlxcel.decide.verdict import VerdictKey
from mlxcel.errors import LoadError
from mlxcel.hardware.profile_store import refuse_pipe, replace_text

__all__ = ["FOLDER", "VerdictStore"]

log = logging.getLogger(__name__)

FOLDER = "mtp-policy"


class VerdictStore:
    """Verdict files of one cache folder.

    Parameters
    ----------
    cache_dir : Path
        The user's cache folder.
    folder : str
        Folder in it: ``mtp-policy`` for verdicts, another for what has the same keys.

    Notes
    -----
    A folder that cannot be read or written costs a warning: the verdict then stays in memory.
    """

    def __init__(self, cache_dir: Path, folder: str = FOLDER) -> None:
        self.folder = cache_dir / folder

    def beside(self, folder: str) -> VerdictStore:
        """The store in another folder of the same cache folder."""
        return VerdictStore(self.folder.parent, folder)

    def path(self, key: VerdictKey) -> Path:
        """File of a key."""
        return self.folder / f"{key.digest}.json"

    def read(self, key: VerdictKey) -> str | None:
        """Text of a key's file, ``None`` where there is none."""
        path = self.path(key)
        try:
            refuse_pipe(path)
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read (%s): measuring again", path, error)
            return None

    def restore(self, key: VerdictKey, take: Callable[[str], object]) -> None:
        """Give a key's text to what it was kept for; text that it refuses is as if none was there.

        Parameters
        ----------
        key : VerdictKey
            Whose file.
        take : callable
            Takes the text over, or raises `LoadError` and changes nothing.
        """
        text = self.read(key)
        if text is None:
            return
        try:
            take(text)
        except LoadError as error:
            log.info("%s: %s", self.path(key), error.message)

    def write(self, key: VerdictKey, text: str | None) -> None:
        """Replace a key's file; ``None`` deletes it."""
        path = self.path(key)
        try:
            if text is None:
                path.unlink(missing_ok=True)
            else:
                replace_text(path, text)
        except OSError as error:
            log.warning("%s cannot be written (%s): it stays in memory", path, error)
