"""Products of few rows with a matrix, with the norm before and the sum or gate behind it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel.models.cuda.source import TYPES, kernel, room_for

__all__ = ["WIDEST", "FewRowsProduct"]

WIDEST = 8
"""Rows at most. A block's shared memory and registers are what limits them."""

_LANE = 32
_NORMED = 2048  # inner size up to which a block holds all of eight rows, and can norm them


class FewRowsProduct:
    """``norm(x) @ weight.T``, then a residual or a gate, as one kernel.

    Parameters
    ----------
    linear : nn.Module
        ``nn.Linear`` or ``nn.QuantizedLinear`` without bias, or an embedding used as one; see
        `serves`.
    norm : nn.RMSNorm, optional
        Taken of the input first.
    gated : bool
        The first half of the outputs are gates of the second: ``silu(gate) * value``.

    Attributes
    ----------
    dtype : mx.Dtype
        Of inputs and outputs.
    """

    def __init__(
        self, linear: nn.Module, *, norm: nn.Module | None = None, gated: bool = False
    ) -> None:
        quantized = "scales" in linear
        self._names, self._arrays = ["x", "w"], [linear["weight"]]
        if quantized:
            self._names += ["scales", "biases"]
            self._arrays += [linear["scales"], linear["biases"]]
        if norm is not None:
            self._names.append("gain")
            self._arrays.append(norm["weight"])
        self._eps = 0.0 if norm is None else float(norm.eps)
        self._bits = int(linear.bits) if quantized else 16
        self._group = int(linear.group_size) if quantized else _LANE
        self._inner = _inner(linear)
        self._outputs, self._gated = int(linear["weight"].shape[0]), gated
        self.dtype = self._arrays[1 if quantized else 0].dtype
        self._calls: dict[tuple[int, int, bool], tuple[Any, dict[str, Any]]] = {}

    @staticmethod
    def serves(linear: nn.Module, *, normed: bool = False) -> bool:
        """Whether a projection, with a norm before it, is one of those that the kernel knows."""
        quantized = "scales" in linear
        if "bias" in linear or (quantized and linear.mode != "affine"):
            return False
        if quantized and (linear.bits not in (4, 8) or linear.group_size % _LANE):
            return False
        inner = _inner(linear)
        dtype = linear["scales" if quantized else "weight"].dtype
        return dtype in TYPES and inner % _LANE == 0 and (not normed or inner <= _NORMED)

    def __call__(self, x: mx.array, added: mx.array | None = None) -> mx.array:
        """Transform ``(rows, width, inner)`` of at most `WIDEST` tokens; add a residual."""
        rows, width, _ = x.shape
        known = self._calls.get((rows, width, added is None))
        call, launch = known or self._prepare(rows, width, added is None)
        if added is None:
            return call(inputs=[x, *self._arrays], **launch)[0]  # type: ignore[no-any-return]
        return call(inputs=[x, *self._arrays, added], **launch)[0]  # type: ignore[no-any-return]

    def _prepare(self, rows: int, width: int, alone: bool) -> tuple[Any, dict[str, Any]]:
        per_warp, warps = self._tiles()
        sizes = (
            room_for(rows * width), per_warp, warps, self._inner, self._outputs, self._bits,
            self._group, str(self._gated).lower(),
        )  # fmt: skip
        names = self._names if alone else [*self._names, "added"]
        of = [name if name in names else "nullptr" for name in ("scales", "biases", "gain")]
        body = (
            f"few_rows<{TYPES[self.dtype]}, {', '.join(map(str, sizes))}>"
            f"(x, w, {', '.join(of)}, {self._eps!r}f, {'nullptr' if alone else 'added'}, out, "
            "x_shape[0] * x_shape[1]);"
        )
        blocks = -(-self._outputs // (per_warp * warps))
        outputs = self._outputs // 2 if self._gated else self._outputs
        launch = {
            "grid": (blocks * warps * _LANE, 1, 1),
            "threadgroup": (warps * _LANE, 1, 1),
            "output_shapes": [(rows, width, outputs)],
            "output_dtypes": [self.dtype],
        }
        made = self._calls[rows, width, alone] = (
            kernel("rows", body, tuple(names), ("out",)), launch,
        )  # fmt: skip
        return made

    def _tiles(self) -> tuple[int, int]:
        """Outputs per warp, and warps per block: enough blocks for all processors."""
        if self._outputs >= 16384:
            return 4, 8
        if self._outputs >= 4096:
            return 2, 4
        return (2 if self._gated else 1), 4


def _inner(linear: nn.Module) -> int:
    """Inner size of a projection."""
    columns = int(linear["weight"].shape[1])
    return columns * 32 // int(linear.bits) if "scales" in linear else columns
