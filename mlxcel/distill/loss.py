"""Cross-entropy against the target's distribution over the draft vocabulary.

Both distributions are restricted to the draft ids. The output rows are frozen, so the
gradient with respect to the head's output is computed together with the loss, a few rows at
a time, and no logits outlive their chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

__all__ = ["LossSpec", "labelled_places", "unrolled_loss"]

FIGURE_PLACES = 1024  # figures are for the eye; passes over all logits cost time
PAD = 2048  # few different shapes: each costs a GPU the capture of a graph


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """How the loss is taken.

    Attributes
    ----------
    decay : float
        Weight of step k is ``decay ** k``.
    chunk : int
        Places whose logits are held at once.
    dtype : mx.Dtype
        Type of the products with the output rows.
    """

    decay: float
    chunk: int
    dtype: mx.Dtype


def labelled_places(
    weights: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Where there is something to learn: only there are logits computed.

    Parameters
    ----------
    weights : float32 array, (rows, length)
        Weight of each token as a label.

    Returns
    -------
    uint32 array, (n,)
        Flat indices of the hidden states whose next token has a weight, padded with zeros to
        few different lengths.
    float32 array, (n,)
        Its weight; 0 in the padding.
    """
    after = np.zeros_like(weights)
    after[:, 1:-1] = weights[:, 2:]  # no chain begins before the first pair
    flat = np.flatnonzero(after)
    places = np.zeros(-(-max(len(flat), 1) // PAD) * PAD, np.uint32)
    shares = np.zeros(len(places), np.float32)
    places[: len(flat)] = flat
    shares[: len(flat)] = after.ravel()[flat]
    return places, shares


def unrolled_loss(
    outputs: Sequence[mx.array],
    hidden: mx.array,
    places: mx.array,
    weights: mx.array,
    output_rows: mx.array,
    spec: LossSpec,
) -> tuple[mx.array, mx.array]:
    """Surrogate loss of chained steps, and figures.

    Parameters
    ----------
    outputs : sequence of mx.array
        Per step ``(rows, length, hidden)`` from `Chain.step`; start i of step k predicts the
        token at i + k + 2, whose distribution comes from the target's hidden state i + k + 1.
    hidden : mx.array
        The target's, ``(rows, length, hidden)``.
    places, weights : mx.array
        uint32 and float32 ``(n,)`` from `labelled_places`.
    output_rows : mx.array
        ``(n, hidden)``, rows of the target's output head for the draft ids.

    Returns
    -------
    mx.array
        Scalar whose gradient is the loss's; its value means nothing.
    mx.array
        float32 ``(2, steps)``: loss and agreement of each step, on some places.
    """
    rows = output_rows.astype(spec.dtype)
    _, length, size = hidden.shape
    known = hidden.astype(spec.dtype).reshape(-1, size)
    flat = [y.reshape(-1, size) for y in outputs]
    column = places % length
    total = mx.maximum(mx.sum(weights), 1.0)
    surrogate = mx.array(0.0)
    figures: list[mx.array] = []
    for begin in range(0, int(places.shape[0]), spec.chunk):
        part = slice(begin, begin + spec.chunk)
        at = places[part].astype(mx.int32)
        wanted = known[at] @ rows.T  # (chunk, n)
        goal = mx.softmax(wanted, axis=-1, precise=True)
        for k, output in enumerate(flat):
            begun = column[part] > k  # the chain began in this row
            made = output[mx.maximum(at - k - 1, 0)]
            given = mx.stop_gradient(made).astype(spec.dtype) @ rows.T
            slope = (mx.softmax(given, axis=-1, precise=True) - goal) @ rows
            weight = mx.where(begun, weights[part], 0.0)
            slope = slope.astype(mx.float32) * (weight * (spec.decay**k / total))[:, None]
            surrogate = surrogate + mx.sum(made.astype(mx.float32) * slope)
            if begin == 0:
                seen = (x[:FIGURE_PLACES] for x in (given, wanted, goal, weight))
                figures.append(_figures(*seen))
    return surrogate, mx.stack(figures, axis=1)


def _figures(given: mx.array, wanted: mx.array, goal: mx.array, weight: mx.array) -> mx.array:
    """Weighted mean cross-entropy and share of equal choices, float32 ``(2,)``."""
    given = given.astype(mx.float32)
    entropy = mx.logsumexp(given, axis=-1) - mx.sum(given * goal.astype(mx.float32), axis=-1)
    same = (mx.argmax(given, axis=-1) == mx.argmax(wanted, axis=-1)).astype(mx.float32)
    mass = mx.maximum(mx.sum(weight), 1e-6)
    return mx.stack([mx.sum(entropy * weight) / mass, mx.sum(same * weight) / mass])
