"""What a GPU would be asked to run, counted on a host without one.

MLX's CPU device takes norms, rotations, attention and unpacking of weights apart into plain
operations, where a GPU has one kernel for each. While a `GpuGraph` is entered, one operation of
the right shape stands in for each of them, so that the graph has the nodes that a GPU's has; its
values are nonsense.

Known from MLX's source (`mlx/fast.cpp`, `mlx/backend/cuda`), not from a run: a fused attention
takes no array mask with a single query; it takes none of bool, which is therefore turned into
numbers by three kernels per call (two fills and a selection); and a rotation's result is laid
out head by head, so that putting heads side by side again copies where there are several tokens.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

__all__ = ["VIEWS", "GpuGraph", "difference", "launches"]

VIEWS = frozenset({
    "AsStrided", "Broadcast", "Depends", "ExpandDims", "Flatten", "Reshape", "Slice", "Split",
    "Squeeze", "StopGradient", "Transpose", "Unflatten", "View",
})  # fmt: skip
"""Operations that give another view of their input's buffer and launch nothing."""

_JOINS = ("Flatten", "Reshape")
_NAMES = {"Expm1": "RMSNorm", "Log1p": "RoPE", "ArcSinh": "Attention", "ErfInv": "Dequantize"}
_KERNELS = ("rms_norm", "rope", "scaled_dot_product_attention")
_NODE = re.compile(r'(\d+) \[label ="(\w+)", shape=rectangle\]')
_INTO = re.compile(r'"(\w+)" -> (\d+)')
_OUT = re.compile(r'(\d+) -> "(\w+)"')


def launches(counts: Counter[str]) -> int:
    """Kernels among counted operations: all that are no views."""
    return sum(count for name, count in counts.items() if name not in VIEWS)


class GpuGraph:
    """Stand-ins for MLX's fused kernels; not for use in two threads."""

    def __init__(self) -> None:
        self._hidden: list[mx.array] = []
        self._plain: dict[str, Any] = {}

    def __enter__(self) -> GpuGraph:
        self._plain = {name: getattr(mx.fast, name) for name in _KERNELS}
        self._unpack = mx.dequantize
        stand_ins = (self._norm, self._rope, self._attention)
        for name, stand_in in zip(_KERNELS, stand_ins, strict=True):
            setattr(mx.fast, name, stand_in)
        mx.dequantize = self._dequantize
        return self

    def __exit__(self, *_: object) -> None:
        for name, plain in self._plain.items():
            setattr(mx.fast, name, plain)
        mx.dequantize = self._unpack

    def count(self, value: Any, tokens: int = 1) -> Counter[str]:
        """Operations by name that evaluating a tree of arrays would run.

        Parameters
        ----------
        value : tree of mx.array
            Not evaluated yet.
        tokens : int
            Tokens per row of the pass; with several, heads are put side by side by a copy.
        """
        arrays = [each for _, each in tree_flatten(value) if isinstance(each, mx.array)]
        out = io.StringIO()
        mx.export_to_dot(out, *arrays, *self._hidden)
        return _counted(out.getvalue(), tokens)

    def take(self) -> list[mx.array]:
        """What the stand-ins have left out, to be evaluated with the rest; given out once."""
        hidden, self._hidden = self._hidden, []
        return hidden

    def _dequantize(self, packed: mx.array, scales: mx.array, *_: Any, **more: Any) -> mx.array:
        self._hide(packed, scales, *_)
        shape = (*packed.shape[:-1], packed.shape[-1] * 32 // more["bits"])
        return mx.erfinv(mx.broadcast_to(scales[..., :1], shape))

    def _norm(self, x: mx.array, *_: Any, **__: Any) -> mx.array:
        return mx.expm1(x)

    def _rope(self, x: mx.array, *_: Any, offset: Any = 0, **__: Any) -> mx.array:
        self._hide(offset)
        return mx.log1p(x)

    def _attention(
        self, q: mx.array, k: mx.array, v: mx.array, *, mask: Any = None, **more: Any
    ) -> mx.array:
        masked = isinstance(mask, mx.array)
        if masked and q.shape[2] == 1:  # taken apart on a GPU, too
            plain = self._plain["scaled_dot_product_attention"]
            return plain(q, k, v, mask=mask, **more)  # type: ignore[no-any-return]
        if masked and mask.dtype == mx.bool_:
            shape = (*q.shape[:3], k.shape[2])
            mask = mx.where(mask, mx.full(shape, 0.0, q.dtype), mx.full(shape, -mx.inf, q.dtype))
        self._hide(k, v, mask)
        return mx.arcsinh(q)

    def _hide(self, *values: Any) -> None:
        self._hidden.extend(each for each in values if isinstance(each, mx.array))


def _counted(dot: str, tokens: int) -> Counter[str]:
    names: dict[str, str] = dict(_NODE.findall(dot))
    maker = {array: node for node, array in _OUT.findall(dot)}
    # Calls of a compiled function share one operation: each has an output of its own.
    compiled = [node for node, _ in _OUT.findall(dot) if names[node].startswith("Compiled")]
    plain = [node for node, name in names.items() if not name.startswith("Compiled")]
    counts = Counter([_NAMES.get(names[node], names[node]) for node in (*plain, *compiled)])
    if tokens > 1:
        counts["copy of heads"] = sum(
            names[node] in _JOINS and names.get(maker.get(array, "")) == "Transpose"
            for array, node in _INTO.findall(dot)
        )
    return +counts


def difference(whole: Counter[str], parts: Sequence[Counter[str]]) -> Counter[str]:
    """What is in a whole and in none of its parts."""
    rest = Counter(whole)
    for part in parts:
        rest.subtract(part)
    return +rest
