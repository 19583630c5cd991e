"""The parts of one pass, each of all layers, ready to be timed alone at the pass's shapes.

Layers are chained through their outputs, as in the pass, so that a GPU cannot run them side by
side. The bytes are what a part must move at least once, the operations those of its products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from mlxcel.runtime.cost_rows import CostRow

__all__ = ["Part", "head_part", "parts_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part: builds its graph; what it moves and computes."""

    name: str
    build: Callable[[], list[mx.array]]
    nbytes: int
    flops: float


def parts_of(row: CostRow, tokens: int, dtype: mx.Dtype) -> Iterator[Part]:
    """The parts of a pass that is fed so many tokens.

    Parameters
    ----------
    row : CostRow
        Its target and its filled caches.
    tokens : int
        Tokens fed.
    dtype : mx.Dtype
        Type of activations.

    Yields
    ------
    Part
        ``projections`` (query, key, value, gate and output), ``attention`` (rotation, write and
        scaled dot product), ``recurrence`` (convolution and gated delta rule, where there is
        any), ``mlp`` (with experts and their router), ``head`` (with the choice of tokens) and
        ``norms`` (and embedding).
    """
    body = row.target.body
    x = _input(row, tokens, dtype)
    layers = list(body.layers)
    yield _projections(layers, x)
    yield _attention(row, layers, x)
    if any("linear_attn" in layer for layer in layers):
        yield _recurrence(row, layers, x)
    yield _mlp(layers, x)
    yield _head(row, x)
    yield _norms(body, layers, x)


def head_part(row: CostRow, tokens: int, dtype: mx.Dtype) -> Part:
    """The part ``head`` alone; parameters are those of `parts_of`."""
    return _head(row, _input(row, tokens, dtype))


def _input(row: CostRow, tokens: int, dtype: mx.Dtype) -> mx.array:
    x = mx.random.normal((1, tokens, int(row.target.text_config["hidden_size"]))).astype(dtype)
    mx.eval(x)
    return x


def _mixer(layer: Any) -> Any:
    """The part of a layer that mixes positions."""
    return layer.linear_attn if "linear_attn" in layer else layer.self_attn


def _elements(module: nn.Module) -> int:
    """Weights of a matrix, packed or not; experts with their first axis."""
    count = int(module.weight.size)
    return count * 32 // int(module.bits) if hasattr(module, "bits") else count


def _bytes(*modules: nn.Module) -> int:
    return sum(int(v.nbytes) for m in modules for _, v in tree_flatten(m.parameters()))


def _projections(layers: list[Any], x: mx.array) -> Part:
    pairs = []
    for layer in layers:
        mixer = _mixer(layer)
        # The one whose output has the shape that the last one takes, or more of it, comes last.
        first = "in_proj_z" if "in_proj_z" in mixer else "q_proj"
        last = "out_proj" if "out_proj" in mixer else "o_proj"
        others = [m for name, m in mixer.items() if "proj" in name and name not in (first, last)]
        pairs.append((others, mixer[first], mixer[last]))
    used = [m for others, first, last in pairs for m in (*others, first, last)]

    def build() -> list[mx.array]:
        out, kept = x, []
        for others, first, last in pairs:
            kept += [other(out) for other in others]
            width = _inputs(last)
            out = x + last(first(out)[..., :width])
        return [out, *kept]

    flops = 2.0 * x.shape[1] * sum(_elements(m) for m in used)
    return Part("projections", build, _bytes(*used), flops)


def _inputs(module: nn.Module) -> int:
    columns = int(module.weight.shape[-1])
    return columns * 32 // int(module.bits) if hasattr(module, "bits") else columns


def _attention(row: CostRow, layers: list[Any], x: mx.array) -> Part:
    tokens = int(x.shape[1])
    full = [at for at, layer in enumerate(layers) if "self_attn" in layer]
    queries: dict[tuple[int, int, int], tuple[mx.array, mx.array]] = {}
    caches = row.frame(tokens)
    nbytes, flops = 0, 0.0
    for at in full:
        shape = _heads(layers[at].self_attn)
        heads, shared, size = shape
        if shape not in queries:
            made = [
                mx.random.normal((1, count, tokens, size)).astype(x.dtype)
                for count in (heads, shared)
            ]
            mx.eval(made)
            queries[shape] = (made[0], made[1])
        seen = min(int(caches[at].keys.shape[2]), row.columns(tokens))
        nbytes += 2 * shared * seen * size * x.dtype.size
        flops += 4.0 * heads * tokens * seen * size
    row.release(tokens)

    def build() -> list[mx.array]:
        ready = row.frame(tokens)
        outs = {shape: made[0] for shape, made in queries.items()}
        masks: dict[Any, Any] = {}
        for at in full:
            attention, cache = layers[at].self_attn, ready[at]
            shape = _heads(attention)
            window = getattr(cache, "window", None)
            if window not in masks:
                masks[window] = cache.make_mask(tokens, return_array=False, window_size=window)
            offset = cache.offset
            query = attention.rope(outs[shape], offset=offset)
            new = attention.rope(queries[shape][1], offset=offset)
            keys, values = cache.update_and_fetch(new, queries[shape][1])
            outs[shape] = scaled_dot_product_attention(
                query, keys, values, cache=cache, scale=attention.scale, mask=masks[window]
            )
        row.release(tokens)
        return [*outs.values(), *row.pending()]

    return Part("attention", build, nbytes, flops)


def _heads(attention: Any) -> tuple[int, int, int]:
    """Query heads, key heads and head size of an attention of either family."""
    if hasattr(attention, "n_heads"):
        return int(attention.n_heads), int(attention.n_kv_heads), int(attention.head_dim)
    return (
        int(attention.num_attention_heads),
        int(attention.num_key_value_heads),
        int(attention.head_dim),
    )


def _recurrence(row: CostRow, layers: list[Any], x: mx.array) -> Part:
    tokens = int(x.shape[1])
    mixers = [
        (layer.linear_attn, cache)
        for layer, cache in zip(layers, row.frame(tokens), strict=True)
        if "linear_attn" in layer
    ]
    first = mixers[0][0]
    inner = mx.random.normal((1, tokens, first.conv_dim)).astype(x.dtype)
    gates = mx.random.normal((1, tokens, first.num_v_heads)).astype(x.dtype)
    gate = mx.random.normal((1, tokens, first.num_v_heads, first.head_v_dim)).astype(x.dtype)
    mx.eval(inner, gates, gate)

    def build() -> list[mx.array]:
        out, states = gate, []
        for mixer, cache in mixers:
            conv = mx.concatenate([cache[0], inner], axis=1)
            mixed = nn.silu(mixer.conv1d(conv))
            query, key, value = (
                part.reshape(1, tokens, heads, -1)
                for part, heads in zip(
                    mx.split(mixed, [mixer.key_dim, 2 * mixer.key_dim], -1),
                    (mixer.num_k_heads, mixer.num_k_heads, mixer.num_v_heads),
                    strict=True,
                )
            )
            query, key = normalize_qk(query, key, inv_scale=mixer.head_k_dim**-0.5, eps=1e-6)
            found, state = gated_delta_update(
                query, key, value + out, gates, gates, mixer.A_log, mixer.dt_bias, cache[1], None
            )
            out = mixer.norm(found, gate)
            states.append(state)
        return [out, *states]

    size = first.num_v_heads * first.head_v_dim * first.head_k_dim
    weights = sum(_bytes(mixer.conv1d) for mixer, _ in mixers)
    # Decay, prediction, update and read-out: four multiply-adds per element of the state.
    flops = 8.0 * tokens * size * len(mixers)
    return Part("recurrence", build, 2 * 4 * size * len(mixers) + weights, flops)


def _mlp(layers: list[Any], x: mx.array) -> Part:
    tokens = int(x.shape[1])
    nbytes, flops = 0, 0.0
    for layer in layers:
        for matrix, active in _matrices(layer, tokens):
            nbytes += int((1 - (1 - active) ** tokens) * _bytes(matrix))
            flops += 2.0 * tokens * active * _elements(matrix)

    def build() -> list[mx.array]:
        out = x
        for layer in layers:
            found = layer.mlp(out)
            if "experts" in layer:
                indices, weights = layer.router(out)
                found = found + layer.experts(out, indices, weights)
            out = x + found
        return [out]

    return Part("mlp", build, nbytes, flops)


def _matrices(layer: Any, tokens: int) -> Iterator[tuple[nn.Module, float]]:
    """Matrices of the feed-forward part, with the share of each that one token uses.

    A router with made-up weights spreads tokens evenly, so of experts that one token uses a
    share s of, n tokens read 1 - (1 - s)^n.
    """
    for part in (layer.mlp, *(layer[n] for n in ("experts", "router") if n in layer)):
        for _, module in part.named_modules():
            weight = module.get("weight") if isinstance(module, nn.Module) else None
            if weight is None or weight.ndim < 2:
                continue
            experts = int(weight.shape[0]) if weight.ndim == 3 else 0
            yield module, _chosen(layer) / experts if experts else 1.0


def _chosen(layer: Any) -> int:
    """Experts that one token uses."""
    inside = hasattr(layer.mlp, "top_k")
    return int(layer.mlp.top_k if inside else layer.config.top_k_experts)


def _head(row: CostRow, x: mx.array) -> Part:
    target = row.target
    tied = "lm_head" not in target.core
    matrix = target.body.embed_tokens if tied else target.core.lm_head
    written = int(x.shape[1]) * target.vocab_size * x.dtype.size

    def build() -> list[mx.array]:
        return [mx.argmax(target.logits(x), axis=-1)]

    flops = 2.0 * x.shape[1] * _elements(matrix)
    return Part("head", build, _bytes(matrix) + written, flops)


def _norms(body: Any, layers: list[Any], x: mx.array) -> Part:
    ids = mx.ones((1, x.shape[1]), mx.uint32)
    inner: dict[int, mx.array] = {}
    plan: list[tuple[list[Any], list[tuple[Any, mx.array]]]] = []
    for layer in layers:
        outer = [m for name, m in layer.items() if "norm" in name and isinstance(m, nn.Module)]
        heads = []
        for name, norm in _mixer(layer).items():
            if name in ("q_norm", "k_norm"):
                dims = int(norm.weight.shape[0])
                count = _heads(layer.self_attn)[0 if name == "q_norm" else 1]
                key = dims * 10_000 + count
                if key not in inner:
                    inner[key] = mx.ones((1, x.shape[1], count, dims), x.dtype)
                heads.append((norm, inner[key]))
        plan.append((outer, heads))
    mx.eval(*inner.values())

    def build() -> list[mx.array]:
        out, kept = body.embed_tokens(ids).astype(x.dtype), []
        for outer, heads in plan:
            kept += [norm(value) for norm, value in heads]
            for norm in outer:
                out = out + norm(out)
        return [body.norm(out), *kept]

    norms = sum(len(outer) for outer, _ in plan) + 1
    moved = 3 * norms * int(x.nbytes) + sum(2 * int(v.nbytes) for _, h in plan for _, v in h)
    return Part("norms", build, moved, 0.0)
