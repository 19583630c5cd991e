"""One row's part of slot caches, copied out so that another row can begin with it."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mlxcel.runtime.kv_cache import SlotCache

__all__ = ["Resume", "RowCopy"]

Layer = tuple[mx.array, mx.array] | None
"""Keys and values ``(1, kv_heads, columns, head_dim)``; ``None`` for a layer without buffers."""


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Keys and values of the first tokens of one row, in buffers of their own.

    Attributes
    ----------
    layers : tuple
        One entry per layer.
    length : int
        Tokens copied.
    first : int
        Fewest tokens it can be cut to. A ring of window + slack positions that has been written
        up to position w has lost all before w - window - slack; a query at n looks back to
        n - window at most, so n must be w - slack at least.
    """

    layers: tuple[Layer, ...]
    length: int
    first: int

    @classmethod
    def of(cls, caches: SlotCache, row: int, length: int, written: int) -> RowCopy:
        """Copy a row; lazy until `state` is evaluated, which is when it lets go of the caches.

        Parameters
        ----------
        caches : SlotCache
            Where the row lives.
        row : int
            Which one.
        length : int
            Tokens to copy; later ones may still be rejected.
        written : int
            Upper bound of the positions that have been written, the rejected ones and those of
            rounds in flight among them.

        Raises
        ------
        ValueError
            A layer keeps a recurrent state.
        """
        if caches.states:
            raise ValueError(
                f"caches {sorted(caches.states)} keep a recurrent state, which belongs to one "
                "length: no prefix of a row can be copied"
            )
        layers = tuple(_taken(layer.keys, layer.values, row, length) for layer in caches.layers)
        rings = [layer.ring for layer in caches.layers if layer.ring is not None]
        wrapped = bool(rings) and written > min(rings)
        return cls(layers, length, max(written - caches.slack, 0) if wrapped else 0)

    def cut(self, length: int) -> RowCopy:
        """A copy of the first ``length`` tokens; lazy like this one."""
        held = [layer or (None, None) for layer in self.layers]
        layers = tuple(_taken(keys, values, 0, length) for keys, values in held)
        return RowCopy(layers, length, self.first)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self.state)

    @property
    def state(self) -> list[mx.array]:
        """All buffers, for ``mx.eval``."""
        return [array for layer in self.layers if layer is not None for array in layer]

    def fill(self, caches: SlotCache, length: int) -> None:
        """Put the first ``length`` tokens into empty caches of one row; the copy stays as it is.

        What a ring holds beyond ``length`` is as if it had been rejected.

        Raises
        ------
        ValueError
            ``length`` is outside of what can be cut to.
        """
        if not self.first <= length <= self.length:
            raise ValueError(
                f"a copy of {self.length} tokens can be cut to {self.first} at least, "
                f"not to {length}"
            )
        for layer, held in zip(caches.layers, self.layers, strict=True):
            if held is not None:
                # New array objects: a write replaces what they stand for, not the copy.
                layer.keys, layer.values = held[0][:, :, :length], held[1][:, :, :length]


def _taken(keys: mx.array | None, values: mx.array | None, row: int, length: int) -> Layer:
    if keys is None or values is None:
        return None
    # Taking rows by an index array always makes new buffers; a slice would share them.
    index = mx.array([row], dtype=mx.int32)
    return keys[:, :, :length][index], values[:, :, :length][index]


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a prompt goes on, and with what.

    Attributes
    ----------
    length : int
        Tokens of the prompt that need not be read.
    target : RowCopy or None
        The target's caches of them, if there are any.
    drafter : RowCopy or None
        The drafter's own.
    branch : int
        A chunk ends here, where other prompts are known to part from this one; 0 for nowhere.
    """

    length: int = 0
    target: RowCopy | None = None
    drafter: RowCopy | None = None
    branch: int = 0
