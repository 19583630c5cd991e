"""What the CUDA kernels of `mlxcel.models.cuda` compute, in plain MLX, for hosts without a GPU.

`plain_kernels` puts these in their place. They read the same call text that the compiler would,
so sizes, names and the order of arguments are checked too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.models.cuda import attend, products, source

_CALL = re.compile(r"^(\w+)<([^>]*)>\(([^;]*)\);$")
_TYPES = {name: dtype for dtype, name in source.TYPES.items()}


def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compute the kernels in plain MLX; what was called is written into the returned list."""
    called: list[str] = []

    def kernel(header: str, call: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        function, constants, arguments = _parsed(call)
        assert f"void {function}(" in (source._HERE / f"{header}.cuh").read_text(encoding="utf-8")

        def run(*, inputs: list[mx.array], output_shapes: Any, output_dtypes: Any,
                grid: tuple[int, ...], threadgroup: tuple[int, ...]) -> list[mx.array]:  # fmt: skip
            called.append(function)
            assert grid[0] % threadgroup[0] == 0
            given = dict(zip(names, inputs, strict=True))
            made = _FUNCTIONS[function](constants, arguments, given)
            for array, shape, dtype in zip(made, output_shapes, output_dtypes, strict=True):
                assert array.shape == tuple(shape), (function, array.shape, shape)
                assert array.dtype == dtype
            return made

        names = list(inputs)
        return run

    for module in (products, attend):
        monkeypatch.setattr(module, "kernel", kernel)
    return called


def _parsed(call: str) -> tuple[str, list[str], list[str]]:
    match = _CALL.match(call)
    assert match, call
    function, constants, arguments = match.groups()
    return function, constants.split(", "), arguments.split(", ")


def _few_rows(
    constants: list[str], arguments: list[str], given: dict[str, mx.array]
) -> list[mx.array]:
    dtype = _TYPES[constants[0]]
    room, per_warp, warps, inner, outputs, bits, group = map(int, constants[1:8])
    gated = constants[8] == "true"
    x, weight = given["x"], given["w"]
    rows = x.shape[0] * x.shape[1]
    assert rows <= room
    assert x.shape[2] == inner
    assert weight.shape[0] == outputs
    assert x.dtype == dtype
    assert per_warp * warps > 0
    assert (not gated or per_warp % 2 == 0)
    x = x.astype(mx.float32)
    if arguments[4] != "nullptr":
        eps = float(arguments[5].rstrip("f"))
        x = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
        x = (x * given["gain"].astype(mx.float32)).astype(dtype).astype(mx.float32)
    if bits < 16:
        scales, biases = (given[name].astype(mx.float32) for name in ("scales", "biases"))
        weight = mx.dequantize(weight, scales, biases, group_size=group, bits=bits)
    out = (x @ weight.astype(mx.float32).T).astype(dtype).astype(mx.float32)
    if gated:
        gate, value = out[..., : outputs // 2], out[..., outputs // 2 :]
        out = gate * mx.sigmoid(gate) * value
    if arguments[6] != "nullptr":
        out = out + given["added"].astype(mx.float32)
    return [out.astype(dtype)]


def _rotate(
    constants: list[str], arguments: list[str], given: dict[str, mx.array]
) -> list[mx.array]:
    dtype, (heads, kv_heads, dims) = _TYPES[constants[0]], map(int, constants[1:])
    x, offset, frequencies = (given[name] for name in ("heads", "offset", "frequencies"))
    rows, width, _ = x.shape
    assert offset.shape == (rows,)
    assert offset.dtype == mx.int32
    assert frequencies.shape == (dims // 2,)
    x = x.reshape(rows, width, heads + 2 * kv_heads, dims).astype(mx.float32)
    at = (offset[:, None] + mx.arange(width)[None]).astype(mx.float32)
    angle = at[:, :, None, None] * frequencies
    left, right = x[..., : dims // 2], x[..., dims // 2 :]
    cos, sin = mx.cos(angle), mx.sin(angle)
    turned = mx.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)
    keys = turned[:, :, heads : heads + kv_heads].transpose(0, 2, 1, 3)
    values = x[:, :, heads + kv_heads :].transpose(0, 2, 1, 3)
    return [part.astype(dtype) for part in (turned[:, :, :heads], keys, values)]


def _attend(
    constants: list[str], arguments: list[str], given: dict[str, mx.array]
) -> list[mx.array]:
    dtype = _TYPES[constants[0]]
    room, _, heads, kv_heads, dims = map(int, constants[1:])
    queries, keys, values, offset = (given[n] for n in ("queries", "keys", "values", "offset"))
    rows, width = queries.shape[:2]
    assert width <= room
    assert queries.shape[2:] == (heads, dims)
    assert keys.shape == values.shape
    assert keys.shape[:2] == (rows, kv_heads)
    scale = float(arguments[4].rstrip("f")) * float(mx.log(mx.array(2.0)))
    q = queries.transpose(0, 2, 1, 3).astype(mx.float32) * scale
    k, v = (mx.repeat(a, heads // kv_heads, axis=1).astype(mx.float32) for a in (keys, values))
    last = offset[:, None] + mx.arange(width)[None]
    seen = mx.arange(keys.shape[2])[None, None] <= last[:, :, None]
    scores = mx.where(seen[:, None], q @ k.transpose(0, 1, 3, 2), mx.array(-mx.inf))
    out = mx.softmax(scores, axis=-1) @ v
    return [out.transpose(0, 2, 1, 3).reshape(rows, width, heads * dims).astype(dtype)]


_FUNCTIONS = {"few_rows": _few_rows, "rotate": _rotate, "attend": _attend}
