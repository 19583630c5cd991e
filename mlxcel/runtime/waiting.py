"""What rounds without drafts leave for a drafter to read later.

A drafter with a cache of its own must read every token, or the cache has holes. Rounds without
drafts do not make it do so: what it would read waits on the device and is read in one pass before
the next draft. What nobody will wait for is forgotten, and the drafter's own positions are
counted without it: rows that classic decode serves for good cost the drafter nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

__all__ = ["LITTLE", "WAITING", "Waiting"]

WAITING = 64
"""Tokens that wait at most, per row; of a head hidden states too, a few megabytes."""

LITTLE = 16
"""Tokens, of all rows together, that are read at once where a row joins or is copied: one narrow
pass. To read 8 for each of 16 parked rows at every change took a ninth of all processor time."""


class Waiting:
    """Blocks of arrays ``(rows, tokens, ...)``, the oldest first, and each row's place for them.

    Attributes
    ----------
    count : int
        Tokens that wait, the same number for every row.
    gaps : list of int
        Tokens of each row that have been forgotten.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.gaps: list[int] = []
        self._start = mx.zeros((0,), mx.int32)
        self._empty()

    def _empty(self) -> None:
        self._blocks: list[tuple[mx.array, ...]] = []
        self.count = 0
        self.bound = 0
        self.exact: int | None = None

    @property
    def little(self) -> bool:
        """Whether all that waits is read in one narrow pass."""
        return self.count * len(self.gaps) <= LITTLE

    @property
    def newest(self) -> tuple[mx.array, ...]:
        """Arrays of the block that came last."""
        return self._blocks[-1] if self._blocks else ()

    def place(
        self, positions: mx.array, exact: int | None = None
    ) -> tuple[mx.array, int | None]:
        """Positions of the rows' texts, int32 ``(rows,)``, as places in the drafter's cache."""
        if not any(self.gaps):
            return positions, exact
        gaps = mx.array(self.gaps, dtype=mx.int32)
        return positions - gaps, None if exact is None else exact - self.gaps[0]

    def add(
        self, arrays: tuple[mx.array, ...], start: mx.array, exact: int | None, bound: int
    ) -> None:
        """One token of every row; positions as in `place`, ``bound`` as in `Frame`."""
        if self.count >= WAITING:
            self.forget(WAITING - 1)
        if not self.count:
            self._start, self.exact = self.place(start, exact)
        self._blocks.append(arrays)
        self.count += 1
        self.bound = bound

    def forget(self, leave: int) -> None:
        """Forget the oldest; what is left comes to lie where they would have."""
        over = max(self.count - leave, 0)
        self.gaps = [gap + over for gap in self.gaps]
        self._drop(over)

    def _drop(self, tokens: int) -> None:
        self.count -= tokens
        while tokens:
            block = self._blocks.pop(0)
            held = int(block[0].shape[1])
            if held > tokens:
                self._blocks.insert(0, tuple(array[:, tokens:] for array in block))
            tokens -= min(held, tokens)

    def join(self, arrays: tuple[mx.array, ...], place: int, bound: int) -> None:
        """A row comes below the others with one token; of theirs the newest is left."""
        self.forget(1)
        (block,) = self._blocks
        both = zip(block, arrays, strict=True)
        self._blocks = [tuple(mx.concatenate([its, new]) for its, new in both)]
        self._start = mx.concatenate([self._start, mx.array([place], mx.int32)])
        self.exact, self.bound = None, max(self.bound, bound)
        self._evaluate()

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.gaps = [self.gaps[row] for row in rows]
        if self.count:
            index = mx.array(list(rows), dtype=mx.int32)
            self._blocks = [tuple(array[index] for array in self._merged())]
            self._start, self.exact = self._start[index], None
            self._evaluate()

    def _evaluate(self) -> None:
        """Else graphs of rows that come and go would grow for as long as nobody drafts."""
        mx.async_eval([self._blocks, self._start])

    def take(self, tokens: int | None = None) -> tuple[tuple[mx.array, ...], mx.array]:
        """Take the oldest out, by default all; with the place of their first, ``(rows,)``."""
        merged, start = self._merged(), self._start
        if tokens is None or tokens == self.count:
            self._empty()
            return merged, start
        self._blocks = [merged]
        self._drop(tokens)
        self._start, self.exact = start + tokens, None
        return tuple(array[:, :tokens] for array in merged), start

    def _merged(self) -> tuple[mx.array, ...]:
        if len(self._blocks) == 1:
            return self._blocks[0]
        by_array = zip(*self._blocks, strict=True)
        return tuple(mx.concatenate(list(parts), axis=1) for parts in by_array)
