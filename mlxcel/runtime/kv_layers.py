"""The buffers of one layer for all rows: keys and values, with a row per running sequence.

Each row has its own length, kept outside as a device array. New keys and values are
written at each row's own offset; rewinding lowers a length and copies nothing, so a
rejected draft costs nothing and rows need not agree on how far they have come. The
objects speak the cache interface of mlx-lm models (``update_and_fetch``, ``offset``,
``make_mask``), which are used unmodified.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxcel.runtime.buffers import grown, inserted, put, whole_steps
from mlxcel.runtime.frame import Frame

if TYPE_CHECKING:
    from mlxcel.runtime.kv_cache import SlotCache

__all__ = ["FullLayer", "KeyValueLayer", "SlidingLayer"]


class KeyValueLayer:
    """Keys and values of one layer, ``(rows, kv_heads, capacity, head_dim)``."""

    window: int | None = None
    ring: int | None = None

    def __init__(self, cache: SlotCache) -> None:
        # Weak: in a circle, dropped buffers would wait for Python's collector.
        self._owner = weakref.ref(cache)
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def _cache(self) -> SlotCache:
        cache = self._owner()
        if cache is None:
            raise AssertionError("the cache that this layer belongs to has been dropped")
        return cache

    @property
    def offset(self) -> int | mx.array:
        """First position of the block in flight; mlx-lm models read it for RoPE."""
        return self._cache.frame.offset

    @property
    def arrays(self) -> list[mx.array]:
        """Both buffers, once they are there."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    @property
    def capacity(self) -> int:
        """Positions the buffers can hold."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def gather(self, rows: mx.array | None, positions: int | None = None) -> None:
        """Keep only these rows (int32), in this order; ``None`` drops all.

        Buffers of twice the capacity that ``positions`` need are cut: the copy is made anyway.
        """
        if self.keys is None or self.values is None:
            return
        if rows is None:
            self.keys = self.values = None
            return
        keys, values = self.keys, self.values
        if positions is not None and self.capacity != self.ring:  # a full ring is in another order
            capacity = self._rounded(positions)
            if 2 * capacity <= self.capacity:
                keys, values = keys[:, :, :capacity], values[:, :, :capacity]
        self.keys, self.values = keys[rows], values[rows]

    def insert(self, other: KeyValueLayer, at: int) -> None:
        """Put the rows of another layer of the same model before this one's row ``at``."""
        if other.keys is None or other.values is None:
            return
        if self.keys is None or self.values is None:
            self.keys, self.values = other.keys, other.values
            return
        capacity = max(self.capacity, other.capacity)
        self.keys, self.values = (
            inserted(grown(mine, capacity), grown(its, capacity), at)
            for mine, its in ((self.keys, other.keys), (self.values, other.values))
        )

    def _reserve(self, keys: mx.array, values: mx.array, positions: int) -> None:
        """Make room for ``positions`` positions, by whole steps."""
        capacity = self._rounded(positions)
        if self.ring is not None:
            capacity = min(capacity, self.ring)
        if self.keys is None or self.values is None:
            rows, heads = keys.shape[:2]
            self.keys = mx.zeros((rows, heads, capacity, keys.shape[-1]), keys.dtype)
            self.values = mx.zeros((rows, heads, capacity, values.shape[-1]), values.dtype)
        elif capacity > self.capacity:
            self.keys = grown(self.keys, capacity)
            self.values = grown(self.values, capacity)

    def _held(self) -> tuple[mx.array, mx.array]:
        if self.keys is None or self.values is None:
            raise AssertionError("the layer has no buffers yet")
        return self.keys, self.values

    def _rounded(self, positions: int) -> int:
        return whole_steps(positions, self._cache.length_step)

    def _write(self, keys: mx.array, values: mx.array, frame: Frame) -> None:
        if isinstance(frame.offset, int):
            held_keys, held_values = self._held()
            if frame.bound <= held_keys.shape[2]:
                held_keys[:, :, frame.offset : frame.bound] = keys
                held_values[:, :, frame.offset : frame.bound] = values
                return
            del held_keys, held_values  # what something else holds is copied, not updated
        index = frame.write_index(self.ring)
        self.keys = put(self._held()[0], index, keys)
        self.values = put(self._held()[1], index, values)

    def _fetch(self, frame: Frame) -> tuple[mx.array, mx.array]:
        keys, values = self._held()
        columns = self._cache.span if self.ring is None else self.visible_columns(frame)
        return keys[:, :, :columns], values[:, :, :columns]

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Mask of the block in the form that mlx-lm models expect.

        Parameters
        ----------
        n : int
            Width of the block.
        return_array : bool
            Always an array, never ``"causal"`` or ``None``.
        window_size : int, optional
            Window asked for by the model.
        """
        frame = self._cache.frame
        window = window_size if self.window is None else self.window
        fits = window is None or frame.bound <= window
        if frame.is_exact and fits and not return_array:
            return None if n == 1 else "causal"
        return frame.mask(self.visible_columns(frame), ring=self.ring, window=window)

    def visible_columns(self, frame: Frame) -> int:
        """Columns that ``update_and_fetch`` of this pass will return."""
        span = self._cache.span_of(frame)
        return span if self.ring is None else min(span, self.ring)


class FullLayer(KeyValueLayer):
    """Layer that sees everything before it."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the block; return all keys and values this pass may see.

        Parameters
        ----------
        keys, values : mx.array
            ``(rows, kv_heads, width, head_dim)``, RoPE applied.
        """
        cache = self._cache
        frame = cache.frame
        if self.keys is None or self.keys.shape[2] < cache.room:
            self._reserve(keys, values, frame.bound)
        self._write(keys, values, frame)
        return self._fetch(frame)

    @property
    def starts(self) -> mx.array:
        """First position of each row's block, int32 ``(rows,)``."""
        return self._cache.frame.starts()

    @property
    def room(self) -> int:
        """Positions of the buffers after `put_block`."""
        return max(self._cache.room, self.capacity)

    def put_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the block; return the whole buffers, of which each query may see its part.

        Parameters
        ----------
        keys, values : mx.array
            ``(rows, kv_heads, width, head_dim)``, RoPE applied.
        """
        cache = self._cache
        if self.keys is None or self.keys.shape[2] < cache.room:
            self._reserve(keys, values, cache.frame.bound)
        self._write(keys, values, cache.frame)
        return self._held()


class SlidingLayer(KeyValueLayer):
    """Layer that sees a window; the buffer is a ring of window + slack positions.

    The slack is the largest block: a rejected tail then only overwrites positions that no
    later query can see, so a shorter length rewinds exactly, also after wrapping.
    """

    window: int
    ring: int

    def __init__(self, cache: SlotCache, window: int) -> None:
        super().__init__(cache)
        self.window = window
        self.ring = window + cache.slack

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the block; return the keys and values of the ring, or of a long chunk."""
        frame = self._cache.frame
        if self._is_long(frame):
            return self._long_chunk(keys, values, frame)
        self._reserve(keys, values, frame.bound)
        self._write(keys, values, frame)
        return self._fetch(frame)

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Mask of the block; see the base class."""
        frame = self._cache.frame
        if not self._is_long(frame):
            return super().make_mask(n, return_array, window_size)
        before = min(_start(frame), self.window)
        query = mx.arange(frame.width)[:, None]
        column = mx.arange(before + frame.width)[None] - before
        return (column <= query) & (column > query - self.window)

    def _is_long(self, frame: Frame) -> bool:
        """Whether a prompt chunk would overwrite what its own first tokens must see."""
        return frame.width > self._cache.slack and frame.bound > self.ring

    def _long_chunk(
        self, keys: mx.array, values: mx.array, frame: Frame
    ) -> tuple[mx.array, mx.array]:
        """A prompt chunk longer than the slack: in temporal order, then into the ring."""
        start = _start(frame)
        kept = min(start, self.window)
        if kept:
            held_keys, held_values = self._held()
            past = mx.arange(start - kept, start) % self.ring
            keys = mx.concatenate([held_keys[:, :, past], keys], axis=2)
            values = mx.concatenate([held_values[:, :, past], values], axis=2)
        tail = mx.arange(frame.bound - self.ring, frame.bound)
        order = mx.argsort(tail % self.ring).astype(mx.int32)
        order = order + (int(keys.shape[2]) - self.ring)
        self.keys, self.values = keys[:, :, order], values[:, :, order]
        return keys, values


def _start(frame: Frame) -> int:
    if not isinstance(frame.offset, int):
        raise AssertionError("prompt chunks have exact frames")
    return frame.offset
