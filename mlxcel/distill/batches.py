"""Batches of text for training, with the target's hidden states."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.distill.group import Group
from mlxcel.distill.loss import labelled_places
from mlxcel.models.target import Target

__all__ = ["Batch", "Batches"]

Batch = tuple[mx.array, mx.array, mx.array, mx.array]  # hidden, tokens, places, weights


class Batches:
    """Batches of text in a fixed composition, in a new order every epoch.

    Parameters
    ----------
    target : Target
        Computes the hidden states.
    tokens : integer array, (rows, length)
        Token ids.
    weights : float32 array, (rows, length)
        Weights of tokens as labels.
    rows : int
        Rows of a batch.
    seed : int
        Of composition and order.
    keep : bool
        Whether hidden states are kept on the device once they are known.
    group : Group, optional
        Processes that share the batches: each has its own.
    """

    def __init__(
        self,
        target: Target,
        tokens: npt.NDArray[Any],
        weights: npt.NDArray[np.float32],
        *,
        rows: int,
        seed: int,
        keep: bool,
        group: Group | None = None,
    ) -> None:
        self._target, self._tokens, self._weights = target, tokens, weights
        self._seed, self._keep = seed, keep
        group = group or Group()
        rows = min(rows, len(tokens) // group.size)
        order = np.random.default_rng([seed, 5]).permutation(len(tokens))
        count = len(tokens) // (rows * group.size)
        parts = [order[i * rows : (i + 1) * rows] for i in range(count * group.size)]
        self._parts = parts[group.rank :: group.size]
        self._hidden: dict[int, mx.array] = {}
        self.tokens_per_batch = rows * int(tokens.shape[1]) * group.size

    def __len__(self) -> int:
        return len(self._parts)

    def at(self, step: int) -> Batch:
        """What a step needs; the same whenever it is asked."""
        epoch, place = divmod(step, len(self._parts))
        order = np.random.default_rng([self._seed, 6, epoch]).permutation(len(self._parts))
        index = int(order[place])
        part = self._parts[index]
        tokens = mx.array(self._tokens[part].astype(np.uint32))
        hidden = self._hidden.get(index)
        if hidden is None:
            hidden = self._target.hidden(tokens, [None] * len(self._target.body.layers))
            if self._keep:
                mx.eval(hidden)
                self._hidden[index] = hidden
        places, weights = labelled_places(self._weights[part])
        return hidden, tokens, mx.array(places), mx.array(weights)
