"""A decode step of eight kernels per layer, for MLX's CUDA backend.

Blocks of the Llama kind run as: norm, queries, keys and values in one; rotation; two writes into
the slot cache; attention; projection with the residual; norm, gate and values in one; projection
with the residual. See `mlxcel.models.cuda` for the kernels, which serve few rows: prompts, wide
batches and caches of mlx-lm's own kind take the block's own way.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models import llama

from mlxcel.models.cuda import WIDEST, Attending, FewRowsProduct, Rotation
from mlxcel.models.joined import JoinedAttention, JoinedSwiGLU

__all__ = ["LONGEST", "FusedBlock", "fuse", "is_fused"]

LONGEST = 8192
"""Columns of a buffer at most: one block of threads reads all of a head's."""

_HEADS = ("lm_head", "embed_tokens")
_PROJECTIONS = (nn.Linear, nn.QuantizedLinear)
_WIDEST_HEAD = 256  # attention keeps queries and sums of a head in shared memory


class _Fused(nn.Module):
    """Takes over the parameters, children and settings of the module in whose place it comes."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        dict.update(self, module)
        self.__dict__.update(module.__dict__)


class FusedBlock(_Fused, llama.TransformerBlock):
    """Decoder layer of the Llama kind; few rows over a slot cache take our kernels.

    Parameters
    ----------
    module : llama.TransformerBlock
        With joined projections, see `mlxcel.models.joined`; one that is `served`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        attention, gated = module["self_attn"], module["mlp"]
        norms = module["input_layernorm"], module["post_attention_layernorm"]
        dtype, rope = norms[0]["weight"].dtype, attention["rope"]
        heads = attention.n_heads, attention.n_kv_heads, int(rope.dims)
        self._heads = FewRowsProduct(attention["qkv_proj"], norm=norms[0])
        self._rotate = Rotation(*heads, _frequencies(rope), dtype)
        self._attend = Attending(*heads, attention.scale, dtype)
        self._out = FewRowsProduct(attention["o_proj"])
        self._gated = FewRowsProduct(gated["gate_up_proj"], norm=norms[1], gated=True)
        self._down = FewRowsProduct(gated["down_proj"])

    @staticmethod
    def served(module: nn.Module) -> bool:
        """Whether all of a module is of a kind that the kernels know."""
        if type(module) is not llama.TransformerBlock:
            return False
        attention, gated = module["self_attn"], module["mlp"]
        if type(attention) is not JoinedAttention or type(gated) is not JoinedSwiGLU:
            return False
        rope, head = attention["rope"], attention.head_dim
        if type(rope) is not nn.RoPE or rope.traditional or rope.dims != head:
            return False
        if head % 32 or head > _WIDEST_HEAD or attention.n_heads % attention.n_kv_heads:
            return False
        behind_norms = [attention["qkv_proj"], gated["gate_up_proj"]]
        others = [attention["o_proj"], gated["down_proj"]]
        if any(type(part) not in _PROJECTIONS for part in behind_norms + others):
            return False
        norms = (module["input_layernorm"], module["post_attention_layernorm"])
        dtypes = {_dtype(part) for part in (*behind_norms, *others, *norms)}
        return (
            len(dtypes) == 1
            and all(FewRowsProduct.serves(part, normed=True) for part in behind_norms)
            and all(FewRowsProduct.serves(part) for part in others)
        )

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any = None
    ) -> mx.array:
        """Transform ``(rows, width, dims)``; ``cache`` as mlx-lm's, or a layer of slots."""
        rows, width, _ = x.shape
        put = getattr(cache, "put_block", None) if x.dtype == self._down.dtype else None
        if put is None or rows * width > WIDEST or cache.room > LONGEST:
            return llama.TransformerBlock.__call__(self, x, mask, cache)  # type: ignore[no-any-return]
        starts = cache.starts
        queries, keys, values = self._rotate(self._heads(x), starts)
        keys, values = put(keys, values)
        x = self._out(self._attend(queries, keys, values, starts), x)
        return self._down(self._gated(x), x)


class _Output(_Fused):
    """An output head that takes our kernel for few rows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._few = FewRowsProduct(module)

    def _serves(self, x: mx.array) -> bool:
        return x.ndim == 3 and x.shape[0] * x.shape[1] <= WIDEST and x.dtype == self._few.dtype


class _Linear(_Output, nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        return self._few(x) if self._serves(x) else nn.Linear.__call__(self, x)


class _QuantizedLinear(_Output, nn.QuantizedLinear):
    def __call__(self, x: mx.array) -> mx.array:
        return self._few(x) if self._serves(x) else nn.QuantizedLinear.__call__(self, x)


class _Embedding(_Output, nn.Embedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return self._few(x) if self._serves(x) else nn.Embedding.as_linear(self, x)


class _QuantizedEmbedding(_Output, nn.QuantizedEmbedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return self._few(x) if self._serves(x) else nn.QuantizedEmbedding.as_linear(self, x)


_OUTPUTS: dict[type, type[_Output]] = {
    nn.Linear: _Linear,
    nn.QuantizedLinear: _QuantizedLinear,
    nn.Embedding: _Embedding,
    nn.QuantizedEmbedding: _QuantizedEmbedding,
}


def fuse(model: nn.Module) -> int:
    """Replace what our kernels can do, in place, after projections have been joined.

    Returns
    -------
    int
        Modules replaced. The output head is one of them only beside decoder layers: alone it
        would gain little.
    """
    blocks = [(path, m) for path, m in model.named_modules() if FusedBlock.served(m)]
    replaced: list[tuple[str, nn.Module]] = [(path, FusedBlock(m)) for path, m in blocks]
    for path, module in model.named_modules() if blocks else ():
        kind = _OUTPUTS.get(type(module))
        if kind and path.rpartition(".")[2] in _HEADS and FewRowsProduct.serves(module):
            replaced.append((path, kind(module)))
    if replaced:
        model.update_modules(tree_unflatten(replaced))
    return len(replaced)


def is_fused(model: nn.Module) -> bool:
    """Whether a model has layers that take our kernels."""
    return any(isinstance(module, FusedBlock) for module in model.modules())


def _frequencies(rope: nn.Module) -> mx.array:
    """Angle per position of each pair, float32 ``(dims / 2,)``, as ``nn.RoPE`` has it."""
    pairs = mx.arange(rope.dims // 2, dtype=mx.float32) / (rope.dims // 2)
    return mx.exp(-pairs * mx.log(mx.array(float(rope.base)))) * float(rope.scale)


def _dtype(linear: nn.Module) -> mx.Dtype:
    array: mx.array = linear["scales"] if "scales" in linear else linear["weight"]
    return array.dtype
