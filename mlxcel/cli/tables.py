"""Parts of tables for people: colours only on a terminal, and nothing wider than it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["cited", "coloured", "decimal", "heading", "make_console", "make_table", "stacked"]

_GOOD = {"run", "runs", "on", "held", "measured gain", "inside"}
_BAD = {"decline", "declined", "off", "failed", "measured loss", "vetoed"}


def make_console() -> Console:
    """A console that takes text as it is."""
    return Console(markup=False, highlight=False, emoji=False)


def make_table(*columns: str | tuple[str, dict[str, Any]]) -> Table:
    """A table with a rule under its head; columns are names, or names with options."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for column in columns:
        name, options = (column, {}) if isinstance(column, str) else column
        table.add_column(name, **{"overflow": "fold", **options})
    return table


def coloured(word: str) -> Text:
    """A word in the colour of what it means."""
    style = "green" if word in _GOOD else "red" if word in _BAD else ""
    return Text(word, style=style)


def heading(text: str) -> Text:
    """Bold text."""
    return Text(text, style="bold")


def cited(evidence: Iterable[tuple[str, str | None]]) -> Text:
    """Ids with dates, one a line."""
    lines = (f"{name} ({date or 'undated'})" for name, date in evidence)
    return Text("\n".join(lines), style="dim")


def stacked(*parts: str | Text) -> Text:
    """Parts below each other; empty ones are left out."""
    return Text("\n").join(
        part if isinstance(part, Text) else Text(part) for part in parts if str(part)
    )


def decimal(value: float | None, digits: int, unit: str = "") -> str:
    """A number with so many digits; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}{unit}"
