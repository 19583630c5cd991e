"""Slot caches: bytes are bounded, writes are in place, rewinding is a shorter length."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny

HEADS, DIM, WINDOW, SLACK = 2, 8, 32, 8


def block(rows, width, value):
    keys = mx.full((rows, HEADS, width, DIM), value, dtype=mx.float32)
    return keys, keys + 0.5


def test_bytes_after_500_tokens_stay_at_window_and_slack():
    model = tiny.loaded(tiny.gemma3_model(window=WINDOW))
    settings = Settings(max_width=SLACK, length_step=64)
    for name in (None, "self"):
        drafter = drafters.make(name, model, settings) if name else None
        engine = Engine(model, drafter, settings)
        engine.add(Request(prompt_ids=(1, 2, 3), params=SamplingParams(max_tokens=500), width=8))
        most = {}
        while engine.busy:
            engine.step()
            for at, layer in enumerate(engine.batch.caches.layers):
                most[at] = max(most.get(at, 0), layer.nbytes)
        per_token = 2 * 2 * 16 * 4  # keys and values, 2 heads of 16, float32
        sliding, full = most[0], most[1]
        assert sliding == (WINDOW + SLACK) * per_token
        assert full == 512 * per_token


@pytest.mark.parametrize("window", [None, 64], ids=["full", "sliding"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_write_copies_nothing(window, ragged):
    """Peak memory of a step is far below the buffer's size: it was updated in place."""
    cache = SlotCache([window], slack=SLACK, length_step=8192)
    layer = cache.layers[0]
    rows = 4 if ragged else 1
    if window is not None:
        layer.window, layer.ring = 8000, 8192
    lengths = mx.array([100, 7, 2000, 55][:rows], dtype=mx.int32)
    for step in range(6):
        if ragged:
            cache.frame = Frame(lengths + step, 2, 2100)
        else:
            cache.frame = Frame.exact(100 + step, 2)
        keys, values = block(rows, 2, float(step))
        mx.eval(keys, values)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        seen = layer.update_and_fetch(keys, values)
        mx.eval(layer.keys, layer.values)
        del seen
        if step > 1:
            assert mx.get_peak_memory() - before < layer.nbytes / 8, step


def test_rows_are_written_at_their_own_offsets_and_rewind():
    cache = SlotCache([None], slack=SLACK, length_step=16)
    layer = cache.layers[0]
    lengths = mx.array([3, 0], dtype=mx.int32)
    cache.frame = Frame(lengths, 4, 7)
    layer.update_and_fetch(*block(2, 4, 1.0))
    cache.frame = Frame(lengths + mx.array([1, 4]), 2, 6)  # 3 drafts of row 0 were rejected
    keys, _ = layer.update_and_fetch(*block(2, 2, 2.0))
    held = np.array(keys[:, 0, :, 0])
    np.testing.assert_array_equal(held[0, :8], [0, 0, 0, 1, 2, 2, 1, 0])
    np.testing.assert_array_equal(held[1, :8], [1, 1, 1, 1, 2, 2, 0, 0])
    mask = np.array(layer.make_mask(2))[:, 0]
    np.testing.assert_array_equal(mask[0, 0, :8], [1, 1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(mask[1, 1, :8], [1, 1, 1, 1, 1, 1, 0, 0])


@pytest.mark.parametrize("start", [0, 5, 30, 31, 32, 33, 39, 40, 41, 77, 200])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_ring_shows_exactly_the_window(start, width):
    """Whatever was rejected before, each query sees its window and nothing else."""
    cache = SlotCache([WINDOW], slack=SLACK, length_step=16)
    layer = cache.layers[0]
    rng = np.random.default_rng(start + width)
    position = 0
    while position < start:  # blocks of which a part is rejected
        size = int(rng.integers(1, SLACK + 1))
        cache.frame = Frame(mx.array([position]), size, position + size)
        values = mx.arange(position, position + size, dtype=mx.float32)
        keys = mx.broadcast_to(values[None, None, :, None], (1, HEADS, size, DIM))
        layer.update_and_fetch(keys, keys)
        position += min(int(rng.integers(1, size + 1)), start - position)
    cache.frame = Frame(mx.array([position]), width, position + width)
    values = mx.arange(position, position + width, dtype=mx.float32)
    keys = mx.broadcast_to(values[None, None, :, None], (1, HEADS, width, DIM))
    held, _ = layer.update_and_fetch(keys, keys)
    mask = np.array(layer.make_mask(width))[0, 0]
    for query in range(width):
        seen = sorted(np.array(held)[0, 0, :, 0][mask[query]].tolist())
        last = position + query
        assert seen == [float(p) for p in range(max(0, last - WINDOW + 1), last + 1)]


@pytest.mark.parametrize("chunk", [3, 9, 31, 40, 41, 100])
def test_long_chunks_leave_the_ring_as_single_steps_do(chunk):
    total = 150
    values = mx.arange(total, dtype=mx.float32)
    everything = mx.broadcast_to(values[None, None, :, None], (1, HEADS, total, DIM))

    def filled(size):
        cache = SlotCache([WINDOW], slack=SLACK, length_step=16)
        for begin in range(0, total, size):
            part = everything[:, :, begin : begin + size]
            cache.frame = Frame.exact(begin, part.shape[2])
            cache.layers[0].update_and_fetch(part, part)
        return cache.layers[0]

    np.testing.assert_array_equal(np.array(filled(chunk).keys), np.array(filled(1).keys))
