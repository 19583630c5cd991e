"""Our CUDA kernels against MLX's own: the same numbers, the same bits for any rows, and seconds.

``python -m benchmarks.cuda_kernels`` on a host with MLX's CUDA backend. Three parts:

1. *numbers*: every kernel against a reference in float32 of plain MLX; and bit for bit, whether a
   token's result depends on how many others are computed with it. A difference ends the run.
2. *host*: what one call costs the host, building the graph and enqueueing it: a chain of calls.
3. *kernels*: microseconds of a call among twenty, against MLX's own product, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from benchmarks.interleave import interleave
from mlxcel.models.cuda import WIDEST, Attending, FewRowsProduct, Rotation
from mlxcel.runtime.representation import detect_backend

PRODUCTS = [  # inner, outputs, bits, normed, added, gated: the demo model's, and larger ones
    (576, 960, 4, True, False, False), (576, 3072, 4, True, False, True),
    (576, 576, 4, False, True, False), (1536, 576, 4, False, True, False),
    (576, 49152, 8, False, False, False), (1536, 960, 16, True, False, False),
    (5376, 5376, 4, False, False, False),
]  # fmt: skip
ATTENTION = [(1, 4, 256, 64), (1, 8, 1024, 64), (3, 2, 300, 64), (2, 4, 4096, 128)]
"""Rows, width, columns, dimensions."""

TOLERANCE = {mx.float16: 2e-3, mx.bfloat16: 2e-2}
"""Largest difference, relative to the largest value: a few roundings of the type."""


def _linear(inner: int, outputs: int, bits: int, dtype: mx.Dtype) -> nn.Module:
    linear: nn.Module = nn.Linear(inner, outputs, bias=False)
    linear.set_dtype(dtype)
    if bits < 16:
        linear = linear.to_quantized(group_size=32, bits=bits)
    mx.eval(linear.parameters())
    return linear


def _said(what: str, mine: mx.array, reference: mx.array, same: bool) -> bool:
    off = float(mx.abs(mine.astype(mx.float32) - reference).max() / mx.abs(reference).max())
    good = same and off <= TOLERANCE[mine.dtype]
    print(f"{what}: off by {off:.1e}, same bits alone: {same}{'' if good else '   WRONG'}")
    return good


def product_holds(
    inner: int, outputs: int, bits: int, normed: bool, added: bool, gated: bool, dtype: mx.Dtype
) -> bool:
    """Check one kind of product."""
    linear, norm = _linear(inner, outputs, bits, dtype), nn.RMSNorm(inner, eps=1e-5)
    norm.weight = (1 + 0.1 * mx.random.normal((inner,))).astype(dtype)
    product = FewRowsProduct(linear, norm=norm if normed else None, gated=gated)
    x = mx.random.normal((1, WIDEST, inner)).astype(dtype)
    rest = mx.random.normal((1, WIDEST, outputs)).astype(dtype)

    def run(x: mx.array, rest: mx.array) -> mx.array:
        return product(x, rest) if added else product(x)

    weight = linear["weight"]
    if bits < 16:
        weight = mx.dequantize(
            weight, linear["scales"], linear["biases"], group_size=32, bits=bits
        )
    out = (norm(x) if normed else x).astype(mx.float32) @ weight.astype(mx.float32).T
    if gated:
        out = nn.silu(out[..., : outputs // 2]) * out[..., outputs // 2 :]
    out = out + rest.astype(mx.float32) if added else out
    mine = run(x, rest)
    same = all(
        bool(mx.array_equal(run(x[:, :n], rest[:, :n]), mine[:, :n])) for n in (1, 2, 3, 5)
    )
    apart = run(x.reshape(WIDEST // 2, 2, inner), rest.reshape(WIDEST // 2, 2, outputs))
    same = same and bool(mx.array_equal(apart.reshape(mine.shape), mine))
    forms = {"normed": normed, "added": added, "gated": gated}
    what = ", ".join([f"product {inner} x {outputs}, {bits} bits", *(f for f in forms if forms[f])])
    return _said(f"{what}, {dtype}", mine, out, same)


def attention_holds(rows: int, width: int, columns: int, dims: int, dtype: mx.Dtype) -> bool:
    """Check attention over rows of different lengths."""
    heads, kv_heads, scale = 9, 3, dims**-0.5
    attend = Attending(heads, kv_heads, dims, scale, dtype)
    keys, values = (
        mx.random.normal((rows, kv_heads, columns, dims)).astype(dtype) for _ in range(2)
    )
    queries = mx.random.normal((rows, width, heads, dims)).astype(dtype)
    offset = mx.array([columns - width - 17 * row for row in range(rows)], dtype=mx.int32)
    mine = attend(queries, keys, values, offset)
    same = all(
        bool(
            mx.array_equal(
                attend(queries[:, i : i + 1], keys, values, offset + i)[:, 0], mine[:, i]
            )
        )
        for i in range(width)
    )
    seen = mx.arange(columns) <= (offset[:, None] + mx.arange(width))[:, None, :, None]
    k, v = (mx.repeat(a, heads // kv_heads, axis=1).astype(mx.float32) for a in (keys, values))
    scores = queries.transpose(0, 2, 1, 3).astype(mx.float32) * scale @ k.swapaxes(-1, -2)
    out = mx.softmax(mx.where(seen, scores, mx.array(-mx.inf)), axis=-1) @ v
    out = out.transpose(0, 2, 1, 3).reshape(rows, width, -1)
    return _said(f"attention {rows} x {width} over {columns}, heads of {dims}", mine, out, same)


def rotation_holds(dtype: mx.Dtype) -> bool:
    """Check rotation against ``nn.RoPE``."""
    heads, kv_heads, dims = 9, 3, 64
    pairs = mx.arange(dims // 2, dtype=mx.float32) / (dims // 2)
    rotate = Rotation(heads, kv_heads, dims, mx.exp(-pairs * mx.log(mx.array(1e5))), dtype)
    x = mx.random.normal((2, 4, (heads + 2 * kv_heads) * dims)).astype(dtype)
    offset = mx.array([100, 357], dtype=mx.int32)
    queries, keys, values = rotate(x, offset)
    apart = x.reshape(2, 4, -1, dims).swapaxes(1, 2)
    turned = nn.RoPE(dims, base=1e5)(apart[:, : heads + kv_heads], offset=offset)
    mine = mx.concatenate([queries.swapaxes(1, 2), keys], axis=1)
    same = bool(mx.array_equal(values, apart[:, heads + kv_heads :]))
    return _said("rotation", mine, turned.astype(mx.float32), same)


def host_cost(name: str, call: Callable[[mx.array], mx.array], x: mx.array) -> None:
    """Print microseconds of the host for one call, from a chain of 400."""
    building, enqueueing = [], []
    for _ in range(6):
        y, begin = x, time.perf_counter()
        for _ in range(400):
            y = call(y)
        built = time.perf_counter()
        mx.async_eval(y)
        enqueueing.append((time.perf_counter() - built) / 400)
        building.append((built - begin) / 400)
        mx.eval(y)
    us = [1e6 * statistics.median(values) for values in (building, enqueueing)]
    print(f"{name:24s} built in {us[0]:5.2f}, enqueued in {us[1]:5.2f}")


def compare(inner: int, outputs: int, bits: int, dtype: mx.Dtype) -> None:
    """Print microseconds of MLX's product and of ours, for 1 to 8 rows."""
    linear = _linear(inner, outputs, bits, dtype)
    ours = FewRowsProduct(linear)
    for rows in (1, 2, 4, 8):
        x = mx.random.normal((1, rows, inner)).astype(dtype)

        def seconds(call: Callable[[mx.array], mx.array], x: mx.array = x) -> float:
            mx.synchronize()
            begin = time.perf_counter()
            mx.eval([call(x) for _ in range(20)])
            return (time.perf_counter() - begin) / 20

        arms: list[Callable[[], float]] = [lambda: seconds(linear), lambda: seconds(ours)]
        mlx, mine = (1e6 * statistics.median(values) for values in interleave(arms, 15))
        print(f"{inner} x {outputs}, {bits} bits, {rows} rows: MLX {mlx:.1f}, ours {mine:.1f}")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers-only", action="store_true")
    args = parser.parse_args()
    if detect_backend() != "cuda":
        sys.exit("these kernels are for MLX's CUDA backend, which this host does not have")
    mx.random.seed(1)
    checks: list[bool] = []
    for dtype in TOLERANCE:
        checks += [product_holds(*product, dtype) for product in PRODUCTS]
        checks += [attention_holds(*shape, dtype) for shape in ATTENTION]
        checks.append(rotation_holds(dtype))
    if not all(checks):
        sys.exit("a kernel gives other numbers than it should")
    if args.numbers_only:
        return
    x, linear = mx.random.normal((1, 1, 576)).astype(mx.float16), _linear(576, 576, 4, mx.float16)
    product, gain = FewRowsProduct(linear), mx.ones((576,), mx.float16)
    calls: dict[str, Any] = {
        "an addition": lambda y: y + x,
        "a norm": lambda y: mx.fast.rms_norm(y, gain, 1e-5),
        "MLX's product": linear,
        "ours": product,
    }
    for name, call in calls.items():
        host_cost(name, call, x)
    for size in ((5376, 21504, 4), (21504, 5376, 4), (5376, 21504, 16), (576, 49152, 8)):
        compare(*size, mx.bfloat16)


if __name__ == "__main__":
    main()
