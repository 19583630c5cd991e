"""Tables of measured records for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlxcel.bench.report import HEAD, against, host_lines, row_cells
from mlxcel.cli.tables import make_console, make_table
from mlxcel.decide.records import Record

__all__ = ["show_record"]


def show_record(record: Record, files: Sequence[Path]) -> None:
    """Print host, rows, what speaks against them, and where the files are."""
    console = make_console()
    for line in host_lines(record):
        console.print(line)
    # Rows of the record are columns here: there are few of them, and a terminal is narrow.
    titles, *fields = zip(HEAD, *map(row_cells, record.rows), strict=True)
    right = {"justify": "right"}
    table = make_table(titles[0], *((title, right) for title in titles[1:]))
    for field in fields:
        table.add_row(*field)
    console.print(table)
    for line in against(record):
        console.print(line)
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)
