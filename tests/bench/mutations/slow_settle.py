"""Settling takes a tenth longer: ``PYTEST_ADDOPTS='-p tests.bench.mutations.slow_settle'``.

Not each call is slowed, whose wrapper alone would cost more than that, but each batch of calls.
"""

from __future__ import annotations

import time

from benchmarks.rings import Rings

SHARE = 0.10

plain = Rings.settle


def slower(self: Rings) -> int:
    """Settle, then burn a tenth of the time that took."""
    began = time.thread_time()
    emitted = plain(self)
    until = time.thread_time() + SHARE * (time.thread_time() - began)
    while time.thread_time() < until:
        pass
    return emitted


Rings.settle = slower  # type: ignore[method-assign]
