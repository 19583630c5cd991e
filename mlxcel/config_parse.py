"""Reading and checking single settings: the parsers of variables, and the bounds of values.

Standard library only; `mlxcel.config` has the table that uses them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

from mlxcel.errors import ConfigError

__all__ = [
    "FALSE",
    "TRUE",
    "Check",
    "flag",
    "flag_or_none",
    "folder",
    "parse_bool",
    "parse_int",
    "parse_path",
    "parse_size",
    "parse_word",
    "setting",
    "whole",
    "whole_or_none",
    "word",
]

Check = Callable[[str, Any], Any]
"""Takes the label of a setting and a value; returns the value, or raises `ConfigError`."""

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


def parse_bool(name: str, text: str) -> bool:
    """Read a boolean variable; the only parser of booleans there is.

    Parameters
    ----------
    name : str
        Variable, for the message.
    text : str
        Its value: true, 1, yes, on or false, 0, no, off, in any case, blanks around it.

    Raises
    ------
    ConfigError
        Any other value, the empty one included.
    """
    said = text.strip().lower()
    if said not in TRUE + FALSE:
        raise ConfigError(f"{name}={text!r}: use one of {', '.join(TRUE + FALSE)}", param=name)
    return said in TRUE


def parse_int(name: str, text: str) -> int:
    """Read a variable with a whole number."""
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text, re.ASCII):
        raise ConfigError(f"{name}={text!r}: use a whole number", param=name)
    return int(text)


_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_size(name: str, text: str) -> int:
    """Read a variable with a number of bytes: ``512MiB``, ``2 GB``, ``0``; units in any case."""
    said = re.fullmatch(r"\s*(\d{1,18})\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if said is None or said[2] not in _UNITS:
        raise ConfigError(
            f"{name}={text!r}: use a whole number of bytes, or one with KiB, MiB, GiB, TiB, KB, "
            "MB, GB or TB",
            param=name,
        )
    return int(said[1]) * _UNITS[said[2]]


def parse_word(name: str, text: str) -> str:
    """Read a variable with one word, in any case."""
    return text.strip().lower()


def parse_path(name: str, text: str) -> Path:
    """Read a variable with the path of a folder."""
    if not text.strip():
        raise ConfigError(f"{name}={text!r}: use the path of a folder", param=name)
    return Path(text)


def whole(low: int, high: int, unit: str) -> Check:
    """Whole numbers from ``low`` to ``high``, both included."""

    def check(label: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{label} must be a whole number of {unit}, got {value!r}")
        if not low <= value <= high:
            raise ConfigError(f"{label} must be between {low} and {high} {unit}, got {value}")
        return value

    return check


def whole_or_none(low: int, high: int, unit: str) -> Check:
    """The same, or ``None``."""
    checked = whole(low, high, unit)

    def check(label: str, value: Any) -> int | None:
        return None if value is None else int(checked(label, value))

    return check


def word(*words: str) -> Check:
    """One of some words."""

    def check(label: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ConfigError(f"{label} must be one of {', '.join(words)}, got {value!r}")
        return value

    return check


def flag(label: str, value: Any) -> bool:
    """A boolean, not a number or a text that could pass for one."""
    if not isinstance(value, bool):
        raise ConfigError(f"{label} must be True or False, got {value!r}")
    return value


def flag_or_none(label: str, value: Any) -> bool | None:
    """A boolean, or ``None`` for a flag that is not set."""
    return None if value is None else flag(label, value)


def folder(label: str, value: Any) -> Path:
    """The path of a folder, with ``~`` resolved."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(f"{label} must be the path of a folder, got {value!r}")
    return Path(value).expanduser()


def setting(
    default: Any,
    help: str,
    *,
    check: Check,
    env: str | None = None,
    parse: Callable[[str, str], Any] | None = None,
    shown: str | None = None,
) -> Any:
    """A field of the settings with its row of the table.

    Parameters
    ----------
    default : Any
        Its default, or a callable that makes it.
    help : str
        What it means, for the documentation.
    check : callable
        Refuses bad values.
    env, parse : str and callable, optional
        Variable, and how its text is read.
    shown : str, optional
        How the documentation writes the default.
    """
    metadata = {"help": help, "check": check, "env": env, "parse": parse, "shown": shown}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
