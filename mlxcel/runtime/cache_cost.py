"""What one position of a model's caches takes, found out without computing anything."""

from __future__ import annotations

import mlx.core as mx

from mlxcel.models.target import Target
from mlxcel.runtime.caches import new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.state_cache import StateLayer

__all__ = ["layer_bytes", "position_bytes"]


def position_bytes(target: Target, *, slack: int, length_step: int) -> list[tuple[int, int | None]]:
    """Bytes per position and row of each cache of a model, and the positions it has at most.

    A pass over a block is built and never evaluated: its shapes are all that is needed. A
    recurrent state does not grow: it is given as a buffer of a single position.

    Parameters
    ----------
    target : Target
        The model.
    slack, length_step : int
        As for its caches.

    Returns
    -------
    list of (int, int or None)
        One pair per layer; empty for a model whose caches are its own.
    """
    caches = new_caches(target, slack=slack, length_step=length_step)
    if not isinstance(caches, SlotCache):
        return []
    width = min(2, slack)  # of two tokens, one may be rejected
    caches.frame = Frame.exact(0, width)
    target.hidden(mx.zeros((1, width), mx.uint32), caches.layers)
    return layer_bytes(caches)


def layer_bytes(caches: SlotCache) -> list[tuple[int, int | None]]:
    """The same of caches that a block of one row has been written to."""
    found: list[tuple[int, int | None]] = []
    for layer in caches.layers:
        if isinstance(layer, StateLayer):
            found.append((layer.row_bytes(caches.slack), 1))
        elif layer.keys is not None and layer.capacity:
            found.append((layer.nbytes // (layer.capacity * layer.keys.shape[0]), layer.ring))
    return found
