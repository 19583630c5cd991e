"""The cache of a recurrent layer: a state per row, and the block that may still be rejected.

A layer with keys forgets a rejected draft when a length gets smaller. A state cannot: it is kept
as it was *before* the newest block, with what that block put in, and is brought to the accepted
length by the pass that comes next, whose frame says where it begins. So nothing has to be told to
the layer, nothing is read back, and rows may have accepted different counts.

A block of one token is always accepted, and one longer than the slack is a prompt's: of these the
state afterwards is kept and no block. Decision 19 has what else was weighed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel.models.gated_delta import Block, State, StateCache, replayed
from mlxcel.runtime.frame import Frame

if TYPE_CHECKING:
    from mlxcel.runtime.kv_cache import SlotCache

__all__ = ["StateLayer"]


class StateLayer(StateCache):
    """State of one recurrent layer for all rows of a slot cache.

    Parameters
    ----------
    cache : SlotCache
        Whose frame says where a pass begins.

    Attributes
    ----------
    held : State or None
        After the first `start` tokens of each row.
    block : Block or None
        What came behind them and may be rejected in part.
    start : int or mx.array
        Tokens in `held`; int32 ``(rows,)`` where the host does not know it.
    """

    window: int | None = None
    ring: int | None = None

    def __init__(self, cache: SlotCache) -> None:
        self._owner = weakref.ref(cache)
        self.held: State | None = None
        self.block: Block | None = None
        self.start: int | mx.array = 0

    @property
    def arrays(self) -> list[mx.array]:
        """All buffers."""
        held = [*(self.held or ()), *(self.block or ())]
        return [*held, self.start] if isinstance(self.start, mx.array) else held

    @property
    def nbytes(self) -> int:
        """Bytes of state and block."""
        return sum(array.nbytes for array in (*(self.held or ()), *(self.block or ())))

    def row_bytes(self, slack: int) -> int:
        """Bytes of one row at most, of a layer that a block of one row has been fed to.

        Two states, since one round is made while the one before is still running, and the
        largest block, its keys and values inside what the convolution put out.
        """
        if self.held is None:
            return 0
        state = sum(array.nbytes for array in self.held)
        if self.block is None:
            return 2 * state
        token = sum(part.nbytes for part in self.block) + self.block.inputs.nbytes
        return 2 * state + slack * token // int(self.block.inputs.shape[1])

    def make_mask(self, n: int) -> None:
        """No token of a block is hidden from a later one."""

    def recall(self, layer: Any) -> State | None:
        """State at the beginning of the block in flight; see `StateCache`.

        Raises
        ------
        ValueError
            The block begins where no state can be brought to.
        """
        frame = self._frame
        if self.held is None:
            return None
        count = frame.since(self.start)
        width = 0 if self.block is None else int(self.block.inputs.shape[1])
        if isinstance(count, int) and not 0 <= count <= width:
            raise ValueError(
                f"a state of {self.start} tokens and a block of {width} cannot be brought to "
                f"{frame.offset} tokens"
            )
        if self.block is None or (isinstance(count, int) and not count):
            return self.held
        if isinstance(count, int):
            return replayed(layer, self.held, self.block, count)
        used, window = frame.used(count, width, int(self.held.window.shape[1]))
        return replayed(layer, self.held, self.block, count, used, window)

    def keep(self, before: State, block: Block, after: State) -> None:
        """Take in a pass; see `StateCache`."""
        frame = self._frame
        if 1 < frame.width <= self._cache.slack:
            self.held, self.block, self.start = before, block, frame.offset
        else:
            self.held, self.block, self.start = after, None, frame.end()

    def gather(self, rows: mx.array | None, positions: int | None = None) -> None:
        """Keep only these rows (int32), in this order; ``None`` drops all."""
        if rows is None or self.held is None:
            self.held, self.block, self.start = None, None, 0
            return
        self.held = State(*(array[rows] for array in self.held))
        if self.block is not None:
            self.block = Block(*(array[rows] for array in self.block))
        self.start = _starts(self.start, int(self.held.memory.shape[0]), rows)

    def insert(self, other: StateLayer, at: int) -> None:
        """Put the rows of another layer of the same model before this one's row ``at``."""
        if other.held is None:
            return
        if self.held is None:
            self.held, self.block, self.start = other.held, other.block, other.start
            return
        mine, its = int(self.held.memory.shape[0]), int(other.held.memory.shape[0])
        own, others = self._padded(other.block), other._padded(self.block)
        self.held = State(
            *(_inserted(a, b, at) for a, b in zip(self.held, other.held, strict=True))
        )
        if own is not None and others is not None:
            self.block = Block(*(_inserted(a, b, at) for a, b in zip(own, others, strict=True)))
        self.start = _inserted(_starts(self.start, mine), _starts(other.start, its), at)

    def _padded(self, other: Block | None) -> Block | None:
        """The block, as wide as another; what is added is never used, since no row counts it."""
        if self.held is None or other is None:
            return self.block
        rows, width = int(self.held.memory.shape[0]), int(other.inputs.shape[1])
        own = self.block or Block(
            *(mx.zeros((rows, 0, *part.shape[2:]), part.dtype) for part in other)
        )
        missing = width - int(own.inputs.shape[1])
        if missing <= 0:
            return own
        return Block(
            *(
                mx.concatenate([part, mx.zeros((rows, missing, *part.shape[2:]), part.dtype)], 1)
                for part in own
            )
        )

    @property
    def _cache(self) -> SlotCache:
        cache = self._owner()
        if cache is None:
            raise AssertionError("the cache that this layer belongs to has been dropped")
        return cache

    @property
    def _frame(self) -> Frame:
        return self._cache.frame


def _starts(start: int | mx.array, rows: int, index: mx.array | None = None) -> mx.array:
    """One start per row."""
    if isinstance(start, int):
        return mx.full((rows,), start, mx.int32)
    return start if index is None else start[index]


def _inserted(rows: mx.array, others: mx.array, at: int) -> mx.array:
    parts = [rows[:at], others, rows[at:]]
    return mx.concatenate([part for part in parts if part.shape[0]])
