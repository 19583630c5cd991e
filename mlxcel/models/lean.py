"""Cheaper forms of small modules for MLX's CPU backend; the model's structure stays.

There `mx.fast.rms_norm` and `mx.fast.rope` are chains of plain operations, run anew in
every layer. A compiled norm and rotation tables that all layers share do the same
arithmetic in fewer passes. On a GPU both are single kernels, so nothing is replaced there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

__all__ = ["lean_modules"]

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


def lean_modules(model: nn.Module) -> int:
    """Replace norms and rotations by their cheaper forms, in place.

    Only ``nn.RMSNorm`` and half-split ``nn.RoPE`` are replaced; every other class stays.

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
    if replaced:
        model.update_modules(tree_unflatten(replaced))
    return len(replaced)
