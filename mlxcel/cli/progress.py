"""A progress bar on standard error, for people only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["bar"]


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """Give a callback ``(label, done, total)`` in bytes that draws one bar per label."""
    console = Console(stderr=True)
    label = TextColumn("{task.description}")
    columns = (label, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done, total=total)

        yield report
