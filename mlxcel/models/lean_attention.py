"""Attention for MLX's CPU backend, where the softmax costs more than both products.

`mx.fast.scaled_dot_product_attention` is a chain of plain operations there, and its softmax
calls the C library several times per score: at eight rows it took more than half of the time
of attention. Here the exponential is a polynomial and an exponent put together from bits, in
one compiled pass; the division comes after the product with the values, where there is less to
divide; the queries that share a key head are one product; and a prompt's chunk goes in blocks
of queries, each of which sees the columns up to its own end only.

A score's weight depends on nothing but its row, so that a token's result stays the same
whatever is computed beside it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen2, qwen3

__all__ = ["KINDS", "LeanAttention", "attend", "can_replace", "exponential"]

BLOCK = 128
"""Queries of a prompt's chunk that are computed together."""

MERGED = 16
"""Rows up to which a product's rows are each computed alike (``hardware/_skinny.h``)."""

_HIDDEN = -1e30  # added to the score of a column that a query may not see
_LOG2_E = math.log2(math.e)
_ROUNDS = 1.5 * 2.0**23  # added and taken away again, it rounds a float32 to a whole number
_SMALLEST = -127.0  # as an exponent of float32 its bits are those of zero
_TERMS = tuple(math.log(2) ** n / math.factorial(n) for n in range(6, -1, -1))


@functools.partial(mx.compile, shapeless=True)  # or every length would be traced anew and kept
def _mantissa_and_exponent(x: mx.array) -> tuple[mx.array, mx.array]:
    """2**fraction and the bits of 2**whole, for the two parts of ``x * log2(e)``."""
    y = x * _LOG2_E
    y = mx.where(y > _SMALLEST, y, _SMALLEST)
    whole = (y + _ROUNDS) - _ROUNDS
    fraction = y - whole
    value = fraction * _TERMS[0] + _TERMS[1]
    for term in _TERMS[2:]:
        value = value * fraction + term
    return value, (whole.astype(mx.int32) + 127) * 2**23


def exponential(x: mx.array) -> mx.array:
    """``exp(x)`` of float32 that is not positive; below ``log(2) * -127`` exactly zero.

    The relative error is at most that of ``mx.exp`` plus 2e-7.
    """
    value, bits = _mantissa_and_exponent(x)
    return value * mx.view(bits, mx.float32)


class MaskTables:
    """What is added to the scores, computed once for all layers of a pass."""

    def __init__(self) -> None:
        self._key: Any = None
        self._table: mx.array | None = None

    def of(self, mask: mx.array | str | None, width: int, columns: int) -> mx.array | None:
        """Table that broadcasts to ``(rows, kv_heads, group, width, columns)``, or ``None``."""
        if mask is None or (isinstance(mask, str) and width == 1):
            return None
        key = (width, columns) if isinstance(mask, str) else mask
        known = self._key is key or (isinstance(mask, str) and self._key == key)
        if self._table is None or not known:
            self._key, self._table = key, _table(mask, width, columns)
        return self._table


def _table(mask: mx.array | str, width: int, columns: int) -> mx.array:
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f"a mask is an array, None or 'causal', got {mask!r}")
        first = columns - width
        visible = mx.arange(columns)[None] <= mx.arange(first, columns)[:, None]
        return mx.where(visible, 0.0, _HIDDEN)
    added = mx.where(mask, 0.0, _HIDDEN) if mask.dtype == mx.bool_ else mask
    return added if added.ndim < 4 else added[:, :, None]


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None,
    tables: MaskTables | None = None,
) -> mx.array:
    """Scaled dot product attention of float32.

    Parameters
    ----------
    queries : mx.array
        ``(rows, heads, width, head_dim)``.
    keys, values : mx.array
        ``(rows, kv_heads, columns, head_dim)``; ``heads`` is a multiple of ``kv_heads``.
    scale : float
        Factor of the scores.
    mask : mx.array, "causal" or None
        Bool or additive ``(rows or 1, 1, width, columns)`` or ``(width, columns)``; "causal"
        has the last query see the last column.
    tables : MaskTables, optional
        Shared by the layers of a model.

    Returns
    -------
    mx.array
        ``(rows, heads, width, head_dim)``.
    """
    width, columns = int(queries.shape[2]), int(keys.shape[2])
    table = (tables or MaskTables()).of(mask, width, columns)
    queries = queries * scale
    if width <= BLOCK or not isinstance(mask, str) or table is None:
        return _attend(queries, keys, values, table)
    parts = []
    for begin in range(0, width, BLOCK):
        end = min(begin + BLOCK, width)
        seen = columns - width + end
        parts.append(
            _attend(
                queries[:, :, begin:end], keys[:, :, :seen], values[:, :, :seen],
                table[begin:end, :seen],
            )
        )  # fmt: skip
    return mx.concatenate(parts, axis=2)


def _attend(
    queries: mx.array, keys: mx.array, values: mx.array, table: mx.array | None
) -> mx.array:
    rows, heads, width, dim = queries.shape
    kv_heads, columns = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    # One product per key head, as long as each of its rows is computed by itself.
    merged = group * width <= MERGED
    if merged:
        scores = queries.reshape(rows, kv_heads, group * width, dim) @ keys.swapaxes(-1, -2)
        scores = scores.reshape(rows, kv_heads, group, width, columns)
    else:
        keys, values = keys[:, :, None], values[:, :, None]
        scores = queries.reshape(rows, kv_heads, group, width, dim) @ keys.swapaxes(-1, -2)
    if table is not None:
        scores = scores + table
    weights = exponential(scores - mx.max(scores, axis=-1, keepdims=True))
    total = mx.sum(weights, axis=-1, keepdims=True)
    if merged:
        weights = weights.reshape(rows, kv_heads, group * width, columns)
        total = total.reshape(rows, kv_heads, group * width, 1)
    return ((weights @ values) / total).reshape(rows, heads, width, dim)


class LeanAttention(nn.Module):
    """Grouped attention of the Llama and Qwen kinds (Ainslie et al. 2023), without sinks."""

    def __init__(self, module: nn.Module, tables: MaskTables) -> None:
        super().__init__()
        self.q_proj, self.k_proj = module["q_proj"], module["k_proj"]
        self.v_proj, self.o_proj = module["v_proj"], module["o_proj"]
        self.rope = module["rope"]
        self._normed = "q_norm" in module
        if self._normed:
            self.q_norm, self.k_norm = module["q_norm"], module["k_norm"]
        self.n_heads, self.n_kv_heads = int(module.n_heads), int(module.n_kv_heads)
        self.scale = float(module.scale)
        self._tables = tables

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any = None
    ) -> mx.array:
        """Transform ``(rows, width, dims)``; ``cache`` as mlx-lm's."""
        rows, width, _ = x.shape
        queries = self.q_proj(x).reshape(rows, width, self.n_heads, -1)
        keys = self.k_proj(x).reshape(rows, width, self.n_kv_heads, -1)
        values = self.v_proj(x).reshape(rows, width, self.n_kv_heads, -1).transpose(0, 2, 1, 3)
        if self._normed:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = queries.transpose(0, 2, 1, 3), keys.transpose(0, 2, 1, 3)
        if cache is None:
            queries, keys = self.rope(queries), self.rope(keys)
        else:
            queries = self.rope(queries, offset=cache.offset)
            keys = self.rope(keys, offset=cache.offset)
            keys, values = cache.update_and_fetch(keys, values)
        out = attend(queries, keys, values, scale=self.scale, mask=mask, tables=self._tables)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(rows, width, -1))  # type: ignore[no-any-return]


KINDS = (llama.Attention, qwen2.Attention, qwen3.Attention)
"""Classes of attention that can be replaced."""


def can_replace(module: nn.Module) -> bool:
    """Whether a module is attention of a known kind with float32 weights."""
    if type(module) not in KINDS:
        return False
    weight = module["q_proj"].get("weight")
    return isinstance(weight, mx.array) and weight.dtype == mx.float32
