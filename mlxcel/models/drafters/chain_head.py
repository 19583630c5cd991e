"""What a head that reads the target's hidden states is to the chain that runs it."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx

__all__ = ["ChainHead", "FinalFeatures"]


class ChainHead(Protocol):
    """A head that turns (features at position i, token at i + 1) into the token at i + 2.

    ``forward`` gives a state, which is input of ``logits`` and takes the place of reduced features
    in the next pair.
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """Behind how many of the target's layers its features are; none: the final ones."""

    @property
    def draft_ids(self) -> mx.array | None:
        """Ids of the head's logits, uint32 ``(n,)``, or ``None`` for the whole vocabulary."""

    def reduce(self, features: mx.array) -> mx.array:
        """From the target's features to ``(rows, width, hidden)``, as wide as a state."""

    def fuse(self, hidden: mx.array, tokens: mx.array) -> mx.array:
        """Join reduced features, or states, with the tokens after them; input of `forward`."""

    def forward(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """The head's layer over ``(rows, width, n)``; ``cache`` is one of mlx-lm's interface."""

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``(rows, width, n)`` of states."""

    def blank(self) -> mx.array:
        """Zeros ``(1, 1, hidden)`` in the type of activations: a state, to measure with."""


class FinalFeatures:
    """Part of a head that reads the target's final hidden states, as they are."""

    taps: tuple[int, ...] = ()

    def reduce(self, features: mx.array) -> mx.array:
        """See `ChainHead`."""
        return features
