"""Plan and settle of the compiled slot table, by rows, against a loop of Python."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.reference import Reference
from benchmarks.rings import Rings

SETTLED = {1: (16, 1024), 8: (8, 1024), 32: (4, 1024), 256: (1, 512), 1024: (1, 128)}
PLANNED = {1: (32, 1024), 8: (24, 1024), 32: (12, 1024), 256: (2, 1024), 1024: (1, 512)}
"""Tables and rounds by rows: milliseconds a sample, and rings that stay in a core's cache."""


@pytest.mark.parametrize("rows", SETTLED)
@pytest.mark.benchmark(group="settle", timer=time.thread_time)
def test_settle(measure: Any, loop: Reference, rows: int) -> None:
    made = Rings(rows, *SETTLED[rows])
    emitted = measure(made.settle, loop, prepare=made.plan)
    assert rows <= emitted <= 4 * rows
    assert all(table.unsettled == 0 for table in made.tables)


@pytest.mark.parametrize("rows", PLANNED)
@pytest.mark.benchmark(group="plan", timer=time.thread_time)
def test_plan(measure: Any, loop: Reference, rows: int) -> None:
    made = Rings(rows, *PLANNED[rows])
    last = measure(made.plan, loop, prepare=made.settle)
    assert (last + 1) % made.rounds == 0
    assert all(table.unsettled == made.rounds for table in made.tables)
