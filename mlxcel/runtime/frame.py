"""Where one forward pass reads and writes: shared by all layers, built once.

Two kinds. An *exact* frame has one row whose length the host knows: offsets are
integers and attention sees exactly the tokens that exist. A *ragged* frame has any
number of rows with lengths on the device: offsets are arrays and masks come from them.
Both answer the same questions, so a layer cache need not know which one it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

__all__ = ["Frame"]


@dataclass
class Frame:
    """One block of ``width`` tokens per row, at each row's own offset.

    Attributes
    ----------
    offset : int or mx.array
        First position of the block: an int (exact), or int32 of shape ``(rows,)``.
    width : int
        Tokens per row in this pass.
    bound : int
        Host-side upper bound of ``offset + width`` over all rows.
    """

    offset: int | mx.array
    width: int
    bound: int
    _memo: dict[object, mx.array] = field(default_factory=dict)
    _since: tuple[int | mx.array, mx.array] | None = None
    _used: tuple[mx.array, tuple[int, int], tuple[mx.array, mx.array]] | None = None

    @classmethod
    def exact(cls, start: int, width: int) -> Frame:
        """Frame of a single row that holds ``start`` tokens."""
        return cls(start, width, start + width)

    @property
    def is_exact(self) -> bool:
        """Whether the host knows the offset."""
        return isinstance(self.offset, int)

    def starts(self) -> mx.array:
        """First position of each row's block, int32 ``(rows,)``."""
        if not isinstance(self.offset, int):
            return self.offset
        if "starts" not in self._memo:
            self._memo["starts"] = mx.array([self.offset], dtype=mx.int32)
        return self._memo["starts"]

    def positions(self) -> mx.array:
        """Absolute positions of the block, int32 ``(rows, width)``."""
        if "positions" not in self._memo:
            start = self.offset if isinstance(self.offset, int) else self.offset[:, None]
            steps = mx.arange(self.width, dtype=mx.int32)[None]
            self._memo["positions"] = start + steps
        return self._memo["positions"]

    def end(self) -> int | mx.array:
        """Position behind the block: an int, or int32 ``(rows,)``."""
        if isinstance(self.offset, int):
            return self.bound
        if "end" not in self._memo:
            self._memo["end"] = self.offset + self.width
        return self._memo["end"]

    def since(self, start: int | mx.array) -> int | mx.array:
        """Tokens of each row between an earlier position and this block; layers share it.

        Parameters
        ----------
        start : int or mx.array
            int32 ``(rows,)`` where rows differ.
        """
        if isinstance(start, int) and isinstance(self.offset, int):
            return self.offset - start
        if self._since is None or self._since[0] is not start:
            self._since = (start, mx.subtract(self.offset, start))
        return self._since[1]

    def used(self, count: mx.array, width: int, tail: int) -> tuple[mx.array, mx.array]:
        """Which tokens of an earlier block count, and the last of them with what came before.

        Parameters
        ----------
        count : mx.array
            int32 ``(rows,)`` from `since`.
        width : int
            Tokens per row of that block.
        tail : int
            Tokens kept from before it, and looked for.

        Returns
        -------
        mx.array
            bool ``(rows, width, 1)``.
        mx.array
            int32 ``(rows, tail, 1)``, indices into those before it and the block together.
        """
        known = self._used
        if known is None or known[0] is not count or known[1] != (width, tail):
            column = count[:, None, None]
            used = mx.arange(width, dtype=mx.int32)[None, :, None] < column
            index = column + mx.arange(tail, dtype=mx.int32)[None, :, None]
            known = self._used = (count, (width, tail), (used, index))
        return known[2]

    def write_index(self, ring: int | None) -> mx.array:
        """Buffer indices of the block, ``(rows, 1, width, 1)``; modulo ``ring`` if given."""
        key = ("write", ring)
        if key not in self._memo:
            at = self.positions()[:, None, :, None]
            self._memo[key] = at if ring is None else at % ring
        return self._memo[key]

    def mask(self, columns: int, *, ring: int | None, window: int | None) -> mx.array:
        """Which buffer columns each query may see, bool ``(rows, 1, width, columns)``.

        Column ``i`` of a ring holds the newest position congruent to ``i`` that has been
        written; a column whose content is newer than the query, or not yet written, or
        older than the window, is hidden.
        """
        key = ("mask", columns, ring, window)
        if key not in self._memo:
            query = self.positions()[:, None, :, None]
            column = mx.arange(columns, dtype=mx.int32)[None, None, None]
            held = column
            if ring is not None:
                newest = query[:, :, -1:, :]
                held = newest - (newest - column) % ring
            visible = held <= query
            if ring is not None:
                visible = visible & (held >= 0)
            if window is not None:
                visible = visible & (held > query - window)
            self._memo[key] = visible
        return self._memo[key]
