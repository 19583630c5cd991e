"""Chains of drafts from every position of a text at once, exactly as decoding makes them.

In decoding, a chain that starts at pair i attends the true pairs up to i and, after its
first step, its own earlier entries. Here all starts run in parallel: step k of start i sits
at RoPE position i + k, sees the keys of true pairs under a causal mask over i, and one own
key of each step in between. So one matrix of scores and k columns beside it are enough
(the training-time test of EAGLE-3, Li et al. 2025, in another arrangement).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxcel.models.drafters.mtp import MTPHead

__all__ = ["Chain"]

ALIGNED = 8  # columns; GPU products are several times slower on rows at odd addresses


class Chain:
    """One text's chains; call `step` once per draft.

    Parameters
    ----------
    head : MTPHead
        The head, with plain (not lean) modules if gradients are to be taken.
    """

    def __init__(self, head: MTPHead) -> None:
        self._head = head
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []

    def step(self, hidden: mx.array, tokens: mx.array) -> mx.array:
        """Next step of the chains of all starts.

        Parameters
        ----------
        hidden : mx.array
            ``(rows, starts, hidden)``: the target's at first, then the result of the last step.
        tokens : mx.array
            ``(rows, starts)``: token ``i + 1`` of the text at first, then the drafts.

        Returns
        -------
        mx.array
            ``(rows, starts, hidden)``, for `MTPHead.logits`.
        """
        layer = self._head.layers[0]
        x = self._head.fuse(hidden, tokens)
        x = x + self._attend(layer.self_attn, layer.input_layernorm(x))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self._head.norm(x)  # type: ignore[no-any-return]

    def _attend(self, attention: Any, x: mx.array) -> mx.array:
        rows, starts, _ = x.shape
        queries, keys, values = (
            project(x).reshape(rows, starts, heads, -1)
            for project, heads in (
                (attention.q_proj, attention.n_heads),
                (attention.k_proj, attention.n_kv_heads),
                (attention.v_proj, attention.n_kv_heads),
            )
        )
        if "q_norm" in attention:
            queries, keys = attention.q_norm(queries), attention.k_norm(keys)
        offset = len(self._keys)
        queries = attention.rope(queries.transpose(0, 2, 1, 3), offset=offset)
        self._keys.append(attention.rope(keys.transpose(0, 2, 1, 3), offset=offset))
        self._values.append(values.transpose(0, 2, 1, 3))
        out = self._weighted(queries * attention.scale, attention.n_kv_heads)
        out = out.reshape(rows, attention.n_heads, starts, -1).transpose(0, 2, 1, 3)
        return attention.o_proj(out.reshape(rows, starts, -1))  # type: ignore[no-any-return]

    def _weighted(self, queries: mx.array, kv_heads: int) -> mx.array:
        """Attention of scaled queries ``(rows, heads, starts, dim)``; heads that share a key
        are folded into the starts, so that products need no broadcast."""
        rows, heads, starts, size = queries.shape
        group = heads // kv_heads
        folded = queries.reshape(rows, kv_heads, group * starts, size)
        grouped = queries.reshape(rows, kv_heads, group, starts, size)
        scores = folded @ self._keys[0].swapaxes(-1, -2)
        scores = scores.reshape(rows, kv_heads, group, starts, starts)
        order = mx.arange(starts)
        hidden = mx.array(-mx.inf, scores.dtype)
        scores = mx.where(order[:, None] >= order[None], scores, hidden)
        own = [
            mx.sum(grouped * keys[:, :, None], axis=-1, keepdims=True) for keys in self._keys[1:]
        ]
        if own:
            rest = mx.broadcast_to(hidden, (*scores.shape[:-1], -len(own) % ALIGNED))
            scores = mx.concatenate([scores, *own, rest], axis=-1)
        true, apart = mx.split(mx.softmax(scores, axis=-1, precise=True), [starts], axis=-1)
        true = true.reshape(rows, kv_heads, group * starts, starts)
        out = (true @ self._values[0]).reshape(grouped.shape)
        for k, values in enumerate(self._values[1:]):
            out = out + apart[..., k : k + 1] * values[:, :, None]
        return out
