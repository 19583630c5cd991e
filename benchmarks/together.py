"""Clients that begin at once, each on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["together"]

Found = TypeVar("Found")


def together(calls: Sequence[Callable[[], Found]]) -> tuple[float, list[Found]]:
    """Make all calls at once.

    Returns
    -------
    float
        Seconds until the last one has ended.
    list
        What each gave. An exception of one is raised once all have ended.
    """
    gate = threading.Barrier(len(calls) + 1)

    def begin(call: Callable[[], Found]) -> Found:
        gate.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        made = [threads.submit(begin, call) for call in calls]
        gate.wait()
        began = time.perf_counter()
    seconds = time.perf_counter() - began
    return seconds, [each.result() for each in made]
