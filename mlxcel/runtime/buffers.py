"""Key/value buffers ``(rows, kv_heads, positions, head_dim)``: growing, inserting, writing."""

from __future__ import annotations

import mlx.core as mx

__all__ = ["grown", "inserted", "put", "whole_steps"]


def whole_steps(positions: int, step: int) -> int:
    """Positions, rounded up to whole steps."""
    return -(-positions // step) * step


def grown(buffer: mx.array, capacity: int) -> mx.array:
    """A buffer with zeros behind it up to a capacity; itself where it is large enough."""
    missing = capacity - int(buffer.shape[2])
    if missing <= 0:
        return buffer
    rows, heads, _, dim = buffer.shape
    return mx.concatenate([buffer, mx.zeros((rows, heads, missing, dim), buffer.dtype)], axis=2)


def inserted(rows: mx.array, others: mx.array, at: int) -> mx.array:
    """Rows with others before row ``at``: one copy, wherever the others go."""
    parts = [rows[:at], others, rows[at:]]
    return mx.concatenate([part for part in parts if part.shape[0]])


def put(held: mx.array, index: mx.array, new: mx.array) -> mx.array:
    """A buffer with new values at positions ``(rows, 1, width, 1)``.

    In place where nothing else holds it.
    """
    return mx.put_along_axis(held, mx.broadcast_to(index, new.shape), new, axis=2)
