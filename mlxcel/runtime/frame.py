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

    @classmethod
    def exact(cls, start: int, width: int) -> Frame:
        """Frame of a single row that holds ``start`` tokens."""
        return cls(start, width, start + width)

    @property
    def is_exact(self) -> bool:
        """Whether the host knows the offset."""
        return isinstance(self.offset, int)

    def positions(self) -> mx.array:
        """Absolute positions of the block, int32 ``(rows, width)``."""
        if "positions" not in self._memo:
            start = self.offset if isinstance(self.offset, int) else self.offset[:, None]
            steps = mx.arange(self.width, dtype=mx.int32)[None]
            self._memo["positions"] = start + steps
        return self._memo["positions"]

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
