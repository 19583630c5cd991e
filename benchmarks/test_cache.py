"""Writing a block into a slot cache, by capacity; the time must not grow with it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from benchmarks.reference import Reference
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache

ROWS, HEADS, WIDTH, DIMS = 4, 3, 4, 64
WRITES = 64


@pytest.mark.parametrize("capacity", [256, 4096, 32768])
@pytest.mark.benchmark(group="slot write")
def test_slot_write(measure: Any, product: Reference, capacity: int) -> None:
    """Four rows, each at its own offset."""
    cache = SlotCache([None], slack=8, length_step=capacity)
    layer = cache.layers[0]
    keys = mx.random.normal((ROWS, HEADS, WIDTH, DIMS), key=mx.random.key(0))
    starts = [10, 50, 3, 77]
    lengths = mx.array(starts, dtype=mx.int32)
    mx.eval(keys, lengths)

    def target() -> None:
        for _ in range(WRITES):
            cache.frame = Frame(lengths, WIDTH, 100)
            layer.update_and_fetch(keys, keys)
            mx.eval(layer.keys, layer.values)

    measure(target, product)
    assert layer.capacity == capacity
    for row, start in enumerate(starts):
        assert mx.array_equal(layer.keys[row, :, start : start + WIDTH], keys[row])
