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
        Per step ``(rows, length - 1, hidden)`` from `Chain.step`; start i of step k predicts
        the token at i + k + 2, whose distribution comes from the target's hidden state i + k + 1.
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
        float32 ``(2, steps)``: loss and agreement of each step, on the first chunk.
    """
    rows = output_rows.astype(spec.dtype)
    hidden, fixed = hidden.astype(spec.dtype), [mx.stop_gradient(y) for y in outputs]
    length = int(hidden.shape[1])
    total = mx.maximum(mx.sum(weights[:, 2:]), 1.0)
    surrogate = mx.array(0.0)
    figures: list[mx.array] = []
    for begin in range(0, int(hidden.shape[0]), spec.chunk):
        part = slice(begin, begin + spec.chunk)
        wanted = hidden[part] @ rows.T  # (chunk, length, n)
        goal = mx.softmax(wanted, axis=-1, precise=True)
        for k, output in enumerate(outputs):
            count = length - 2 - k
            if count < 1:
                continue
            given = fixed[k][part, :count].astype(spec.dtype) @ rows.T
            weight = weights[part, k + 2 :]
            slope = mx.softmax(given, axis=-1, precise=True) - goal[:, k + 1 : k + 1 + count]
            slope = (slope * weight[..., None].astype(spec.dtype)) @ rows
            slope = mx.stop_gradient(slope).astype(mx.float32) * (spec.decay**k / total)
            surrogate = surrogate + mx.sum(output[part, :count].astype(mx.float32) * slope)
            if begin == 0:
                clipped = slice(k + 1, k + 1 + count)
                figures.append(_figures(given, wanted[:, clipped], goal[:, clipped], weight))
    return surrogate, mx.stack(figures, axis=1)


def _figures(given: mx.array, wanted: mx.array, goal: mx.array, weight: mx.array) -> mx.array:
    """Weighted mean cross-entropy and share of equal choices, float32 ``(2,)``."""
    given = given.astype(mx.float32)
    entropy = mx.logsumexp(given, axis=-1) - mx.sum(given * goal.astype(mx.float32), axis=-1)
    same = (mx.argmax(given, axis=-1) == mx.argmax(wanted, axis=-1)).astype(mx.float32)
    mass = mx.maximum(mx.sum(weight), 1e-6)
    return mx.stack([mx.sum(entropy * weight) / mass, mx.sum(same * weight) / mass])
