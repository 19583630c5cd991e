"""Rotation of a block's heads, and attention of few queries over a slot buffer."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from mlxcel.models.cuda.source import TYPES, kernel, room_for

__all__ = ["Attending", "Rotation"]

_THREADS = 128
_WARPS = 8


class Rotation:
    """Takes a joined projection apart and rotates queries and keys.

    Parameters
    ----------
    heads, kv_heads, dims : int
        Query heads, key heads, and dimensions of a head.
    frequencies : mx.array
        float32 ``(dims / 2,)``: angle per position, of each pair.
    dtype : mx.Dtype
        Of the heads.
    """

    def __init__(
        self, heads: int, kv_heads: int, dims: int, frequencies: mx.array, dtype: mx.Dtype
    ) -> None:
        self._heads, self._kv_heads, self._dims = heads, kv_heads, dims
        self._frequencies, self._dtype = frequencies, dtype
        body = (
            f"rotate<{TYPES[dtype]}, {heads}, {kv_heads}, {dims}>(heads, offset, frequencies, "
            "queries, keys, values, heads_shape[0], heads_shape[1]);"
        )
        names = ("heads", "offset", "frequencies")
        self._kernel = kernel("rotate", body, names, ("queries", "keys", "values"))
        self._launches: dict[tuple[int, int], dict[str, Any]] = {}

    def __call__(self, heads: mx.array, offset: mx.array) -> list[mx.array]:
        """Queries, keys and values.

        Parameters
        ----------
        heads : mx.array
            ``(rows, width, (heads + 2 kv_heads) * dims)``.
        offset : mx.array
            int32 ``(rows,)``, position of each row's first token.

        Returns
        -------
        list of mx.array
            ``(rows, width, heads, dims)`` and twice ``(rows, kv_heads, width, dims)``.
        """
        rows, width, _ = heads.shape
        launch = self._launches.get((rows, width)) or self._launch(rows, width)
        return self._kernel(inputs=[heads, offset, self._frequencies], **launch)  # type: ignore[no-any-return]

    def _launch(self, rows: int, width: int) -> dict[str, Any]:
        threads = rows * width * (self._heads + 2 * self._kv_heads) * self._dims // 2
        kept = (rows, self._kv_heads, width, self._dims)
        made = self._launches[rows, width] = {
            "grid": (-(-threads // _THREADS) * _THREADS, 1, 1),
            "threadgroup": (_THREADS, 1, 1),
            "output_shapes": [(rows, width, self._heads, self._dims), kept, kept],
            "output_dtypes": [self._dtype] * 3,
        }
        return made


class Attending:
    """Causal attention of a block's queries over each row's own length.

    Parameters
    ----------
    heads, kv_heads, dims : int
        Query heads, key heads, and dimensions of a head, a multiple of 32.
    scale : float
        Of the scores.
    dtype : mx.Dtype
        Of queries and buffers.
    """

    def __init__(
        self, heads: int, kv_heads: int, dims: int, scale: float, dtype: mx.Dtype
    ) -> None:
        self._heads, self._kv_heads, self._dims, self._dtype = heads, kv_heads, dims, dtype
        self._scale = scale * math.log2(math.e)
        self._calls: dict[tuple[int, int], tuple[Any, dict[str, Any]]] = {}

    def __call__(
        self, queries: mx.array, keys: mx.array, values: mx.array, offset: mx.array
    ) -> mx.array:
        """Heads side by side, ``(rows, width, heads * dims)``.

        Parameters
        ----------
        queries : mx.array
            ``(rows, width, heads, dims)``.
        keys, values : mx.array
            Whole buffers, ``(rows, kv_heads, columns, dims)``, the block written.
        offset : mx.array
            int32 ``(rows,)``: query ``i`` of a row sees its first ``offset + i + 1`` columns.
        """
        rows, width = queries.shape[:2]
        call, launch = self._calls.get((rows, width)) or self._prepare(rows, width)
        return call(inputs=[queries, keys, values, offset], **launch)[0]  # type: ignore[no-any-return]

    def _prepare(self, rows: int, width: int) -> tuple[Any, dict[str, Any]]:
        sizes = (room_for(width), _WARPS, self._heads, self._kv_heads, self._dims)
        body = (
            f"attend<{TYPES[self._dtype]}, {', '.join(map(str, sizes))}>(queries, keys, values, "
            f"offset, {self._scale!r}f, out, queries_shape[1], keys_shape[2]);"
        )
        launch = {
            "grid": (rows * self._heads * _WARPS * 32, 1, 1),
            "threadgroup": (_WARPS * 32, 1, 1),
            "output_shapes": [(rows, width, self._heads * self._dims)],
            "output_dtypes": [self._dtype],
        }
        names = ("queries", "keys", "values", "offset")
        made = self._calls[rows, width] = (kernel("attend", body, names, ("out",)), launch)
        return made
