"""The one place where guards and benchmark meet.

A guard is a context manager around everything that is timed; what it gives has a ``report`` for
``provenance.guards``. Guards that wait for a quiet host and watch it are in
`mlxcel.bench.guards`; here is what a campaign runs under when nobody gives it any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

__all__ = ["Guarded", "OpenGuards", "unguarded"]


class Guarded(Protocol):
    """Guards that are at work, or have been."""

    def report(self) -> dict[str, Any]:
        """JSON for ``provenance.guards``: ``quiet`` and ``contention``."""


OpenGuards = Callable[[], AbstractContextManager[Guarded]]
"""Starts the guards of one campaign."""


class _None:
    def report(self) -> dict[str, Any]:
        """Say that nothing guarded the runs."""
        absent = {"ran": False, "passed": False, "reason": "not guarded"}
        return {"quiet": dict(absent), "contention": dict(absent)}


@contextmanager
def unguarded() -> Iterator[Guarded]:
    """No guard; rows are then marked as not to be published."""
    yield _None()
