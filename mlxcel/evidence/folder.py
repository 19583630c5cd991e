"""Adds records and predictions to a folder of evidence; never changes what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxcel.errors import LoadError

__all__ = ["PACKAGED", "add_file", "as_text"]

PACKAGED = Path(__file__).parent
"""The evidence of the package: a folder of the sources, or where it was installed."""


def as_text(value: Mapping[str, Any]) -> str:
    """A JSON value as the files of evidence hold it: indented, ending in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def add_file(folder: Path, name: str, text: str) -> Path:
    """Write a new file.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    name : str
        Id of the record or prediction; the file's name without its ending.
    text : str
        What to write.

    Raises
    ------
    LoadError
        The file is there already, or cannot be written; nothing is left of it then.
    """
    path = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise LoadError(
            f"{path} is there already and is left as it is; choose another id"
        ) from None
    except OSError as error:
        raise LoadError(
            f"{path} cannot be written: {error.strerror or error}; name a folder of your own with "
            "--evidence"
        ) from error
    return path
