"""Which caches serve a model: slot caches, or the model's own where those cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from mlxcel.errors import EngineError
from mlxcel.models.target import Target
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.representation import detect_backend

__all__ = ["Caches", "NativeCache", "new_caches", "slot_cache"]

_CPU_SPAN = 16


class Caches(Protocol):
    """Caches of all rows of a batch."""

    frame: Frame

    @property
    def layers(self) -> list[Any]:
        """Objects to be passed to the model."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    @property
    def state(self) -> list[mx.array]:
        """Arrays held, for ``mx.eval``."""

    def gather(self, rows: Sequence[int], positions: int | None = None) -> None:
        """Keep only these rows, in this order; buffers may shrink to ``positions``."""

    def append(self, other: Any, at: int | None = None) -> None:
        """Add the rows of other caches of the same model, which are taken over, before ``at``."""


class NativeCache:
    """The model's own mlx-lm caches: one row, one token at a time, no rewinding."""

    def __init__(self, target: Target) -> None:
        self.frame = Frame.exact(0, 0)
        self.layers = target.new_native_cache()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.state)

    @property
    def state(self) -> list[mx.array]:
        """Arrays held, for ``mx.eval``."""
        found: list[mx.array] = []
        for layer in self.layers:
            _collect(layer.state, found)
        return found

    def gather(self, rows: Sequence[int], positions: int | None = None) -> None:
        """Keep the single row."""
        if list(rows) != [0]:
            raise EngineError(f"a {type(self).__name__} holds one row, asked for {list(rows)}")

    def append(self, other: NativeCache, at: int | None = None) -> None:
        """Take over the single row of another."""
        self.layers = other.layers


def _collect(value: Any, found: list[mx.array]) -> None:
    if isinstance(value, mx.array):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def new_caches(target: Target, *, slack: int, length_step: int) -> Caches:
    """Make empty caches for a model.

    Parameters
    ----------
    target : Target
        The model.
    slack : int
        Largest block of a round, in tokens.
    length_step : int
        Buffers grow by this many positions.
    """
    layout = target.layout
    if layout.windows is None:
        return NativeCache(target)
    return slot_cache(
        layout.windows, slack=slack, length_step=length_step, states=layout.states
    )


def slot_cache(
    windows: Sequence[int | None], *, slack: int, length_step: int, states: Sequence[int] = ()
) -> SlotCache:
    """Make slot caches with the steps that this backend is fast with.

    A new shape costs a graph capture on a GPU and nothing on the CPU backend, where
    attention over columns that are masked out costs as much as over others.
    """
    span = _CPU_SPAN if detect_backend() == "cpu" else length_step
    return SlotCache(
        windows, slack=slack, length_step=length_step, span_step=span, states=states
    )
