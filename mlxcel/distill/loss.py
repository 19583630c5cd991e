"""Cross-entropy against the target's distribution over the draft vocabulary.

Both distributions are restricted to the draft ids. The output rows are frozen, so the
gradient with respect to the head's output is computed together with the loss, a few rows at
a time, and no logits outlive their chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

__all__ = ["LossSpec", "unrolled_loss"]

FIGURE_ROWS = 2  # figures are for the eye; passes over all logits cost time


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """How the loss is taken.

    Attributes
    ----------
    decay : float
        Weight of step k is ``decay ** k``.
    chunk : int
        Rows whose logits are held at once.
    dtype : mx.Dtype
        Type of the products with the output rows.
    """

    decay: float
    chunk: int
    dtype: mx.Dtype


def unrolled_loss(
    outputs: Sequence[mx.array],
    hidden: mx.array,
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
        Starts for which there is no such token do not count.
    hidden : mx.array
        The target's, ``(rows, length, hidden)``.
    weights : mx.array
        float32 ``(rows, length)``, weight of each token as a label.
    output_rows : mx.array
        ``(n, hidden)``, rows of the target's output head for the draft ids.

    Returns
    -------
    mx.array
        Scalar whose gradient is the loss's; its value means nothing.
    mx.array
        float32 ``(2, steps)``: loss and agreement of each step, on the first rows.
    """
    rows = output_rows.astype(spec.dtype)
    hidden = hidden.astype(spec.dtype)
    places = mx.arange(int(hidden.shape[1]))
    labels = mx.where(places + 1 < len(places), mx.roll(weights, -1, 1), 0.0)
    # Moved to the place of the hidden state that knows better, all products have whole rows.
    moved = [mx.roll(y, k + 1, 1) for k, y in enumerate(outputs)]
    factors = [mx.where(places > k, labels, 0.0) for k in range(len(outputs))]
    total = mx.maximum(mx.sum(weights[:, 2:]), 1.0)
    surrogate = mx.array(0.0)
    figures: list[mx.array] = []
    for begin in range(0, int(hidden.shape[0]), spec.chunk):
        part = slice(begin, begin + spec.chunk)
        wanted = hidden[part] @ rows.T  # (chunk, length, n)
        goal = mx.softmax(wanted, axis=-1, precise=True)
        for k, output in enumerate(moved):
            given = mx.stop_gradient(output[part]).astype(spec.dtype) @ rows.T
            slope = (mx.softmax(given, axis=-1, precise=True) - goal) @ rows
            share = (factors[k][part] * (spec.decay**k / total))[..., None]
            slope = slope.astype(mx.float32) * share
            surrogate = surrogate + mx.sum(output[part].astype(mx.float32) * slope)
            if begin == 0:
                seen = (x[:FIGURE_ROWS] for x in (given, wanted, goal, factors[k]))
                figures.append(_figures(*seen))
    return surrogate, mx.stack(figures, axis=1)


def _figures(given: mx.array, wanted: mx.array, goal: mx.array, weight: mx.array) -> mx.array:
    """Weighted mean cross-entropy and share of equal choices, float32 ``(2,)``."""
    given = given.astype(mx.float32)
    entropy = mx.logsumexp(given, axis=-1) - mx.sum(given * goal.astype(mx.float32), axis=-1)
    same = (mx.argmax(given, axis=-1) == mx.argmax(wanted, axis=-1)).astype(mx.float32)
    mass = mx.maximum(mx.sum(weight), 1e-6)
    return mx.stack([mx.sum(entropy * weight) / mass, mx.sum(same * weight) / mass])
