"""Copies of one row: real copies, cut exactly, and refused where a ring has forgotten."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.row_copy import RowCopy

HEADS, DIM, WINDOW, SLACK = 2, 4, 16, 4


def new_cache() -> SlotCache:
    return SlotCache([None, WINDOW], slack=SLACK, length_step=8)


def feed(cache, frame, values):
    """Keys and values that are the positions themselves; what each layer may see."""
    block = mx.broadcast_to(values[:, None, :, None], (values.shape[0], HEADS, frame.width, DIM))
    cache.frame = frame
    seen = []
    for layer in cache.layers:
        mask = layer.make_mask(frame.width, return_array=True)
        keys, held = layer.update_and_fetch(block, block + 0.5)
        mask = np.array(mask if mask.ndim == 2 else mask[0, 0])
        for query in range(frame.width):
            ours = np.array(keys)[0, 0, :, 0][mask[query]]
            np.testing.assert_array_equal(np.array(held)[0, 0, :, 0][mask[query]], ours + 0.5)
            seen.append(sorted(ours.tolist()))
    return seen


def read(cache, begin, end, chunk):
    for start in range(begin, end, chunk):
        width = min(chunk, end - start)
        feed(cache, Frame.exact(start, width), mx.arange(start, start + width)[None] * 1.0)


def expected(begin, width, window):
    positions = range(begin, begin + width)
    low = [0 if window is None else max(0, p - window + 1) for p in positions]
    return [[float(x) for x in range(a, p + 1)] for a, p in zip(low, positions, strict=True)]


@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 25])
@pytest.mark.parametrize("written", [3, 15, 16, 17, 20, 21, 24, 40, 63])
def test_a_row_that_begins_with_a_copy_sees_what_it_would_have_seen(chunk, written):
    """For every length it can be cut to, in the next block and the ones after it."""
    source = new_cache()
    read(source, 0, written, chunk)
    length = written - 1  # the last position was rejected
    copy = RowCopy.of(source, 0, length, written)
    mx.eval(copy.state)
    assert copy.first == (0 if written <= WINDOW + SLACK else written - SLACK)
    for cut in range(max(copy.first, 1), length + 1):
        for width in (1, 3, SLACK, 9, 30):
            cache = new_cache()
            copy.fill(cache, cut)
            values = mx.arange(cut, cut + width)[None] * 1.0
            seen = feed(cache, Frame.exact(cut, width), values)
            assert seen == expected(cut, width, None) + expected(cut, width, WINDOW)
            more = cut + width
            frame = Frame(mx.array([more]), SLACK, more + SLACK)
            seen = feed(cache, frame, mx.arange(more, more + SLACK)[None] * 1.0)
            assert seen == expected(more, SLACK, None) + expected(more, SLACK, WINDOW)


def test_one_token_less_than_the_bound_has_lost_something():
    """The bound is not merely careful: a query there would look for what has been overwritten."""
    source = new_cache()
    read(source, 0, 40, 3)
    copy = RowCopy.of(source, 0, 40, 40)
    for cut in (copy.first - 1, 41):
        with pytest.raises(ValueError, match="can be cut to 36 at least"):
            copy.fill(new_cache(), cut)
    held = set(np.array(source.layers[1].keys)[0, 0, :, 0].tolist())
    assert min(held) == copy.first - WINDOW


def test_a_row_of_many_is_copied_out_and_shares_nothing():
    source = new_cache()
    rows = mx.arange(3, dtype=mx.float32)[:, None] * 100 + mx.arange(6, dtype=mx.float32)[None]
    block = mx.broadcast_to(rows[:, None, :, None], (3, HEADS, 6, DIM))
    source.frame = Frame(mx.zeros((3,), dtype=mx.int32), 6, 6)
    for layer in source.layers:
        layer.update_and_fetch(block, block)
    copy = RowCopy.of(source, 1, 5, 6)
    mx.eval(copy.state)
    assert copy.nbytes == 2 * 2 * HEADS * 5 * DIM * 4
    cache = new_cache()
    copy.fill(cache, 4)
    for layer in source.layers:
        layer.keys[:, :, :] = -1.0
    cache.frame = Frame.exact(4, 1)
    for layer in cache.layers:
        keys, _ = layer.update_and_fetch(*[mx.full((1, HEADS, 1, DIM), 7.0)] * 2)
        np.testing.assert_array_equal(np.array(keys)[0, 0, :5, 0], [100, 101, 102, 103, 7])
    for keys, _ in copy.layers:
        np.testing.assert_array_equal(np.array(keys)[0, 0, :, 0], [100, 101, 102, 103, 104])


def test_a_full_ring_is_not_written_through():
    """No growth makes new buffers there, so the write itself must not reach the copy."""
    source = new_cache()
    read(source, 0, 50, 4)
    copy = RowCopy.of(source, 0, 50, 50)
    mx.eval(copy.state)
    before = [np.array(array) for array in copy.state]
    for width in (1, SLACK, 9):
        cache = new_cache()
        copy.fill(cache, 48)
        feed(cache, Frame.exact(48, width), mx.full((1, width), -5.0))
        mx.eval(cache.state)
    for array, old in zip(copy.state, before, strict=True):
        np.testing.assert_array_equal(np.array(array), old)


def test_layers_without_buffers_stay_without():
    copy = RowCopy.of(new_cache(), 0, 0, 0)
    assert (copy.nbytes, copy.state, copy.layers) == (0, [], (None, None))
    cache = new_cache()
    copy.fill(cache, 0)
    assert cache.nbytes == 0
