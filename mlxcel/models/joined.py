"""Fewer kernels per layer for MLX's CUDA backend, where the host is what limits a step.

There a step takes as long as the host needs to enqueue its kernels, however small they are.
Projections that read the same input are one matrix product here, queries and keys are rotated
together, and what an array mask adds to the scores is made once per pass: MLX turns a mask of
bool into numbers anew in every layer, by three kernels.

The products' rows are the same numbers in one matrix; attention gets the mask that MLX would
have made. Speculative and classic rows use the same modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models import llama, qwen2, qwen3
from mlx_lm.models.activations import swiglu

from mlxcel.models.lean_attention import KINDS

__all__ = ["SWIGLU", "AddedMasks", "JoinedAttention", "JoinedSwiGLU", "join_projections", "joined"]

WIDEST = 64
"""Queries of a block at most; the mask of a prompt's chunk would be too much to keep."""

SWIGLU = (llama.MLP, qwen2.MLP, qwen3.MLP)
"""Classes of gated blocks that can be replaced."""


def joined(parts: Sequence[nn.Module]) -> nn.Module | None:
    """One projection whose outputs are those of all, side by side.

    Parameters
    ----------
    parts : sequence of nn.Module
        Projections of the same input.

    Returns
    -------
    nn.Module or None
        With ``parts``, the outputs of each. ``None`` where the parts are no plain or no equally
        quantized projections.
    """
    kinds = {(type(part), "bias" in part, *_form(part)) for part in parts}
    if len(kinds) != 1:
        return None
    kind, biased, *form = kinds.pop()
    if kind is nn.Linear:
        whole: nn.Module = nn.Linear(1, 1, bias=biased)
    elif kind is nn.QuantizedLinear:
        bits, group_size, mode = form[:3]
        whole = nn.QuantizedLinear(
            group_size, 1, bias=biased, bits=bits, group_size=group_size, mode=mode
        )
    else:
        return None
    for name in ("weight", "scales", "biases", "bias"):
        if parts[0].get(name) is not None:
            whole[name] = mx.concatenate([part[name] for part in parts])
    whole.parts = tuple(int(part.weight.shape[0]) for part in parts)
    return whole


def _form(part: nn.Module) -> tuple[Any, ...]:
    """What has to be equal for one kernel to serve both."""
    dtypes = tuple(str(part[name].dtype) for name in ("weight", "scales", "bias") if name in part)
    if not hasattr(part, "bits"):
        return (None, None, None, part["weight"].shape[1], *dtypes)
    affine = part.get("biases") is not None
    return (part.bits, part.group_size, part.mode, affine, part["weight"].shape[1], *dtypes)


class AddedMasks:
    """What is added to the scores for a mask of bool, made once for all layers of a pass."""

    def __init__(self) -> None:
        self._made: list[tuple[mx.array, mx.array]] = []

    def of(self, mask: mx.array | str | None, shape: tuple[int, ...], dtype: mx.Dtype) -> Any:
        """The mask in the form that costs nothing more.

        Parameters
        ----------
        mask : mx.array, str or None
            As mlx-lm's layers get it. Only an array of bool is changed, and only for a block of
            several queries: for one, attention with an array mask is no single kernel anyway.
        shape : tuple of int
            ``(rows, heads, width, columns)`` of the scores.
        dtype : mx.Dtype
            Of the scores.
        """
        if not isinstance(mask, mx.array) or mask.dtype != mx.bool_ or not 1 < shape[2] <= WIDEST:
            return mask
        for known, added in self._made:
            if known is mask and added.shape == shape and added.dtype == dtype:
                return added
        zero, hidden = mx.array(0.0, dtype), mx.array(-mx.inf, dtype)
        added = mx.where(mx.broadcast_to(mask, shape), zero, hidden)
        # A model with windows has two masks per pass.
        self._made = [*self._made[-1:], (mask, added)]
        return added


class JoinedAttention(nn.Module):
    """Attention of the Llama and Qwen kinds with one projection for queries, keys and values."""

    def __init__(self, module: nn.Module, projection: nn.Module, masks: AddedMasks) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj, self.rope = projection, module["o_proj"], module["rope"]
        self._normed = "q_norm" in module
        if self._normed:
            self.q_norm, self.k_norm = module["q_norm"], module["k_norm"]
        self.n_heads, self.n_kv_heads = int(module.n_heads), int(module.n_kv_heads)
        self.head_dim = sum(projection.parts) // (self.n_heads + 2 * self.n_kv_heads)
        self.scale = float(module.scale)
        self._masks = masks

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any = None
    ) -> mx.array:
        """Transform ``(rows, width, dims)``; ``cache`` as mlx-lm's."""
        # By item: `nn.Module` finds attributes that are modules by a function call each.
        rows, width, _ = x.shape
        of_all = self.n_heads + 2 * self.n_kv_heads
        heads = self["qkv_proj"](x).reshape(rows, width, of_all, -1).transpose(0, 2, 1, 3)
        keyed = self.n_heads + self.n_kv_heads
        queries, keys = self._turned(heads[:, :keyed], 0 if cache is None else cache.offset)
        values = heads[:, keyed:]
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        shape = (rows, self.n_heads, width, int(keys.shape[2]))
        out = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale,
            mask=self._masks.of(mask, shape, queries.dtype),
        )  # fmt: skip
        return self["o_proj"](out.transpose(0, 2, 1, 3).reshape(rows, width, -1))  # type: ignore[no-any-return]

    def _turned(self, heads: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """Rotated queries and keys, from both: ``(rows, heads, width, head_dim)``."""
        if self._normed:
            queries = self.q_norm(heads[:, : self.n_heads])
            keys = self.k_norm(heads[:, self.n_heads :])
            return self.rope(queries, offset=offset), self.rope(keys, offset=offset)
        turned = self["rope"](heads, offset=offset)
        return turned[:, : self.n_heads], turned[:, self.n_heads :]


class JoinedSwiGLU(nn.Module):
    """Gated feed-forward block (Shazeer 2020) with one projection for gate and values."""

    def __init__(self, block: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.down_proj, self.gate_up_proj = block["down_proj"], projection

    def __call__(self, x: mx.array) -> mx.array:
        """Transform ``(..., dims)``."""
        gate, up = mx.split(self["gate_up_proj"](x), 2, axis=-1)
        return self["down_proj"](swiglu(gate, up))  # type: ignore[no-any-return]


def join_projections(model: nn.Module) -> int:
    """Join the projections of attention and of gated blocks, in place.

    Only the exact classes of the Llama, Qwen 2 and Qwen 3 kinds are replaced, and only where their
    projections are alike. Each replaced one is evaluated, so that never more than one block's
    weights are there twice.

    Returns
    -------
    int
        Modules replaced.
    """
    masks = AddedMasks()
    count = 0
    for path, module in model.named_modules():
        attention = type(module) in KINDS
        if not attention and type(module) not in SWIGLU:
            continue
        names = ("q_proj", "k_proj", "v_proj") if attention else ("gate_proj", "up_proj")
        projection = joined([module[name] for name in names])
        if projection is None:
            continue
        mx.eval(projection.parameters())
        new = (
            JoinedAttention(module, projection, masks)
            if attention
            else JoinedSwiGLU(module, projection)
        )
        model.update_modules(tree_unflatten([(path, new)]))
        count += 1
    return count
