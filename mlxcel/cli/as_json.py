"""The option ``--json`` of commands that print one JSON value, and its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["json_option", "write_json"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Add the option, which the command gets as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON.")(command)


def write_json(value: object) -> None:
    """Print a value."""
    click.echo(json.dumps(value, indent=2))
