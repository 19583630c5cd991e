"""How many bytes of caches a set of requests takes: the arithmetic of admission. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CacheCost", "LayerCost"]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One cache buffer.

    Attributes
    ----------
    position_bytes : int
        Bytes of one position of one row, keys and values.
    most : int or None
        Positions the buffer ever has (a sliding window's ring); ``None`` where it grows.
    """

    position_bytes: int
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCost:
    """What rows cost that may come to so many tokens.

    Attributes
    ----------
    layers : tuple of LayerCost
        All buffers of target and drafter.
    slack : int
        Tokens written past the end of a row at most: blocks that are rejected there.
    step : int
        Tokens by which buffers grow.
    """

    layers: tuple[LayerCost, ...]
    slack: int
    step: int

    def bytes_of(self, tokens: Sequence[int]) -> int:
        """Bytes of all rows of one batch.

        Parameters
        ----------
        tokens : sequence of int
            Most tokens of each row, prompt and output. Rows of a batch share their buffers, so
            each takes as much as the longest.
        """
        if not tokens:
            return 0
        positions = -(-(max(tokens) + self.slack) // self.step) * self.step
        row = sum(
            layer.position_bytes * min(positions, layer.most or positions) for layer in self.layers
        )
        return len(tokens) * row
