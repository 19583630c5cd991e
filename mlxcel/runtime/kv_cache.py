"""Slot caches: what the layers of one model hold for all rows, and the pass in flight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import mlx.core as mx

from mlxcel.runtime.buffers import whole_steps
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_layers import FullLayer, SlidingLayer
from mlxcel.runtime.state_cache import StateLayer

__all__ = ["FullLayer", "SlidingLayer", "SlotCache"]

_END = 2**31 - 1


class SlotCache:
    """The layer caches of one model for all rows.

    Parameters
    ----------
    windows : sequence of int or None
        One entry per cache the model asks for: ``None`` for a full layer, else the window.
    slack : int
        Largest block that may be rejected, in tokens.
    length_step : int
        Buffers grow by this many positions.
    span_step : int, optional
        Attention sees a multiple of this many positions where lengths are on the device;
        ``length_step`` by default. Small steps save work, large ones keep shapes few.
    states : collection of int, optional
        Which of the caches hold a recurrent state instead.

    Attributes
    ----------
    room, span : int
        Positions that the buffers of full layers need for the pass in flight, and how many of
        them it may see.
    """

    def __init__(
        self,
        windows: Sequence[int | None],
        *,
        slack: int,
        length_step: int,
        span_step: int | None = None,
        states: Collection[int] = (),
    ) -> None:
        self.slack = slack
        self.length_step = length_step
        self.span_step = min(span_step or length_step, length_step)
        self.frame = Frame.exact(0, 0)
        self.states = frozenset(states)
        self.layers: list[Any] = [
            self._layer(at, window) for at, window in enumerate(windows)
        ]

    def _layer(self, at: int, window: int | None) -> FullLayer | SlidingLayer | StateLayer:
        if at in self.states:
            return StateLayer(self)
        return FullLayer(self) if window is None else SlidingLayer(self, window)

    @property
    def frame(self) -> Frame:
        """The pass in flight. What all layers need of it is found out once, when it is set."""
        return self._frame

    @frame.setter
    def frame(self, frame: Frame) -> None:
        self._frame = frame
        self.room = whole_steps(frame.bound, self.length_step)
        self.span = self.span_of(frame)

    def span_of(self, frame: Frame) -> int:
        """Columns up to the end of the block; rounded up where only a bound is known."""
        if frame.is_exact:
            return frame.bound
        room = whole_steps(frame.bound, self.length_step)
        return min(whole_steps(frame.bound, self.span_step), room)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def state(self) -> list[mx.array]:
        """All buffers, for ``mx.eval``."""
        return [array for layer in self.layers for array in layer.arrays]

    def gather(self, rows: Sequence[int], positions: int | None = None) -> None:
        """Keep only these rows, in this order; buffers may shrink to ``positions``."""
        index = mx.array(list(rows), dtype=mx.int32) if rows else None
        for layer in self.layers:
            layer.gather(index, positions)

    def append(self, other: SlotCache, at: int | None = None) -> None:
        """Add the rows of another cache of the same model; it must not be used again.

        Parameters
        ----------
        other : SlotCache
            The rows to be added.
        at : int, optional
            The row they come before; below all others by default.
        """
        for mine, its in zip(self.layers, other.layers, strict=True):
            mine.insert(its, _END if at is None else at)
