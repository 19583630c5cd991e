"""Cheaper forms of small modules for MLX's CPU backend; the model's structure stays.

There `mx.fast.rms_norm` and `mx.fast.rope` are chains of plain operations, run anew in
every layer, and an exponential is a library call per element. A compiled norm, rotation
tables that all layers share, and a sigmoid of plain arithmetic do the same in fewer passes;
attention is in `mlxcel.models.lean_attention`.
On a GPU these are single kernels; what is replaced there is in `mlxcel.models.joined`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from mlxcel.models.fused import fuse
from mlxcel.models.joined import SWIGLU, join_projections
from mlxcel.models.lean_attention import LeanAttention, MaskTables, can_replace

__all__ = ["LEAN_VERSION", "lean_for", "lean_modules"]

LEAN_VERSION = 4
"""Of the arithmetic of all replacements: what was found with another one is found anew."""

Norm = Callable[[mx.array, mx.array], mx.array]


@functools.cache
def _norm(eps: float, dims: int) -> Norm:
    """One function per size: a shapeless graph keeps the divisor of the mean."""

    def norm(x: mx.array, weight: mx.array) -> mx.array:
        mean = mx.mean(x * x, axis=-1, keepdims=True)
        return x * mx.rsqrt(mean + eps) * weight

    return mx.compile(norm, shapeless=True)


class LeanRMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019, equation 4), compiled."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = float(norm.eps)

    def __call__(self, x: mx.array) -> mx.array:
        """Normalise the last axis; any shape ``(..., dims)``."""
        return _norm(self.eps, int(x.shape[-1]))(x, self.weight)


@mx.compile
def _rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    half = x.shape[-1] // 2
    swapped = mx.concatenate([x[..., half:], x[..., :half]], axis=-1)
    return x * cos + swapped * sin


class RotationTables:
    """Cosines and signed sines of the block in flight, computed once for all layers."""

    def __init__(self, dims: int, base: float, scale: float) -> None:
        half = mx.arange(0, dims // 2, dtype=mx.float32)
        self._frequencies = mx.power(base, -half / (dims // 2)) * scale
        self._key: tuple[int | mx.array, int] | None = None
        self._tables: tuple[mx.array, mx.array] | None = None

    def at(self, offset: int | mx.array, width: int) -> tuple[mx.array, mx.array]:
        """Tables ``(rows or 1, 1, width, dims)`` for a block that begins at ``offset``."""
        if self._tables is None or self._key is None or not _same(self._key, offset, width):
            start = offset if isinstance(offset, int) else offset.reshape(-1, 1, 1, 1)
            steps = mx.arange(width, dtype=mx.float32)[None, None, :, None]
            angles = (steps + start) * self._frequencies
            cos, sin = mx.cos(angles), mx.sin(angles)
            self._tables = (
                mx.concatenate([cos, cos], axis=-1),
                mx.concatenate([-sin, sin], axis=-1),
            )
            self._key = (offset, width)
        return self._tables


def _same(key: tuple[int | mx.array, int], offset: int | mx.array, width: int) -> bool:
    if key[1] != width:
        return False
    if isinstance(offset, int) and isinstance(key[0], int):
        return offset == key[0]
    return offset is key[0]


class LeanRoPE(nn.Module):
    """Rotary position embedding (Su et al. 2021, section 3.2) from shared tables."""

    def __init__(self, rope: nn.RoPE, tables: RotationTables) -> None:
        super().__init__()
        self.dims = int(rope.dims)
        self._shared = tables

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate ``(rows, heads, width, head_dim)``; only the first ``dims`` features."""
        cos, sin = self._shared.at(offset, int(x.shape[2]))
        if x.shape[-1] == self.dims:
            return _rotate(x, cos, sin)
        rest = x[..., self.dims :]
        return mx.concatenate([_rotate(x[..., : self.dims], cos, sin), rest], axis=-1)


# Rational approximation of tanh on [-7.905, 7.905], as in Eigen's generic_fast_tanh_float.
_TANH_BOUND = 7.90531110763549805
_TANH_ODD = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_EVEN = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
)  # fmt: skip


def _polynomial(x: mx.array, coefficients: tuple[float, ...]) -> mx.array:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _swiglu(gate: mx.array, up: mx.array) -> mx.array:
    x = mx.clip(0.5 * gate, -_TANH_BOUND, _TANH_BOUND)
    square = x * x
    tanh = x * _polynomial(square, _TANH_ODD) / _polynomial(square, _TANH_EVEN)
    return gate * (0.5 + 0.5 * tanh) * up


_compiled_swiglu = mx.compile(_swiglu, shapeless=True)


class LeanSwiGLU(nn.Module):
    """Gated feed-forward block (Shazeer 2020) with a sigmoid of plain arithmetic.

    The largest difference from the exact function is 2.4e-6 over inputs of -20 to 20, where
    float32 itself gives 1.4e-6.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.down_proj = block["gate_proj"], block["down_proj"]
        self.up_proj = block["up_proj"]

    def __call__(self, x: mx.array) -> mx.array:
        """Transform ``(..., dims)``."""
        return self.down_proj(_compiled_swiglu(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


def lean_for(model: nn.Module, backend: str) -> int:
    """Replace what is cheaper in another form on a backend, in place.

    Parameters
    ----------
    model : nn.Module
        A target, or a head.
    backend : {"cpu", "cuda", "metal"}
        On Metal nothing is replaced: nothing has been measured there.

    Returns
    -------
    int
        Modules replaced.
    """
    if backend == "cpu":
        return lean_modules(model)
    return join_projections(model) + fuse(model) if backend == "cuda" else 0


def lean_modules(model: nn.Module) -> int:
    """Replace norms, rotations, gated blocks and attention by their cheaper forms, in place.

    Only ``nn.RMSNorm``, half-split ``nn.RoPE`` and float32 blocks and attention of the Llama
    and Qwen kinds are replaced; every other class stays.

    Returns
    -------
    int
        Modules replaced.
    """
    from mlx.utils import tree_unflatten

    shared: dict[tuple[int, float, float], RotationTables] = {}
    replaced: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        if type(module) is nn.RMSNorm:
            replaced.append((path, LeanRMSNorm(module)))
        elif type(module) is nn.RoPE and not module.traditional:
            key = (int(module.dims), float(module.base), float(module.scale))
            tables = shared.setdefault(key, RotationTables(*key))
            replaced.append((path, LeanRoPE(module, tables)))
        elif type(module) in SWIGLU and _is_float32(module):
            replaced.append((path, LeanSwiGLU(module)))
    if replaced:
        model.update_modules(tree_unflatten(replaced))
    mask_tables = MaskTables()
    attention: list[tuple[str, nn.Module]] = [
        (path, LeanAttention(module, mask_tables))  # with the rotations replaced above
        for path, module in model.named_modules()
        if can_replace(module)
    ]
    if attention:
        model.update_modules(tree_unflatten(attention))
    return len(replaced) + len(attention)


def _is_float32(block: nn.Module) -> bool:
    weight = block["gate_proj"].get("weight")
    return isinstance(weight, mx.array) and weight.dtype == mx.float32
