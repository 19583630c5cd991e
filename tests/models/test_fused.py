"""Layers of our CUDA kernels: wired as the model's own, and served where they can be.

There is no GPU here: the kernels are computed in plain MLX from the very calls that would be
compiled. What the compiled ones give is checked by ``python -m benchmarks.cuda_kernels`` there.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from mlxcel.models import fused
from mlxcel.models.cuda import WIDEST
from mlxcel.models.fused import FusedBlock, fuse, is_fused
from mlxcel.models.joined import join_projections
from mlxcel.models.lean import lean_for
from mlxcel.models.target import Target
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kernel_profile import projections_of
from mlxcel.runtime.kv_cache import SlotCache
from tests.support import tiny
from tests.support.cuda_reference import plain_kernels

LAYERS = 3


def _model(*, tied: bool = True, bits: int = 4, dtype: mx.Dtype = mx.float16, **more: Any) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 96, "num_hidden_layers": LAYERS, "intermediate_size": 160,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32,
    }  # fmt: skip
    args = llama.ModelArgs(
        model_type="llama", rms_norm_eps=1e-5, vocab_size=128, tie_word_embeddings=tied,
        **{**sizes, **more},
    )  # fmt: skip
    mx.random.seed(5)
    model = llama.Model(args)
    for layer in model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight = 1 + 0.2 * mx.random.normal(norm.weight.shape)
    model.set_dtype(dtype)
    if bits < 16:
        nn.quantize(model, group_size=32, bits=bits)
    mx.eval(model.parameters())
    return model


def _passes(model: Any, plan: list[tuple[int, bool]], rows: int = 1) -> list[mx.array]:
    """Logits of a prompt of 20 tokens and of blocks behind it; each on the host's or a device's
    length."""
    target = Target(model, {"model_type": "llama"})
    cache = SlotCache([None] * LAYERS, slack=16, length_step=32)
    lengths = mx.array([20] + [13] * (rows - 1), dtype=mx.int32)
    prompt = (mx.arange(20 * rows).reshape(rows, 20) * 5 % 128).astype(mx.uint32)
    cache.frame = Frame.exact(0, 20)
    found = [target.logits(target.hidden(prompt, cache.layers))[:, -1:]]
    for at, (width, exact) in enumerate(plan):
        start = int(lengths[0])
        cache.frame = (
            Frame.exact(start, width) if exact else Frame(lengths, width, start + width)
        )
        block = ((mx.arange(rows * width).reshape(rows, width) * 7 + at) % 128).astype(mx.uint32)
        found.append(target.logits(target.hidden(block, cache.layers)))
        lengths = lengths + width
    mx.eval(found)
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_the_logits_are_those_of_the_models_own_layers(
    monkeypatch: pytest.MonkeyPatch, tied: bool, bits: int, dtype: mx.Dtype
) -> None:
    called = plain_kernels(monkeypatch)
    plan = [(1, True), (1, True), (4, True), (3, False), (1, False), (9, False)]
    plain = _passes(_model(tied=tied, bits=bits, dtype=dtype), plan)
    model = _model(tied=tied, bits=bits, dtype=dtype)
    lean_for(model, "cuda")
    assert is_fused(model)
    mine = _passes(model, plan)
    tolerance = 0.02 if dtype == mx.float16 else 0.15
    for a, b in zip(plain, mine, strict=True):
        assert mx.allclose(a, b, atol=tolerance), mx.abs(a - b).max()
        if dtype == mx.float16:  # bfloat16 has ties
            assert (mx.argmax(a, -1) == mx.argmax(b, -1)).all()
    per_layer = {"few_rows": 4, "rotate": 1, "attend": 1}
    few = 5  # passes of at most `WIDEST` tokens
    assert {name: called.count(name) for name in per_layer} == {
        "few_rows": few * (4 * LAYERS + 1) + 2,  # the head: once per pass, the prompt's and a probe
        "rotate": few * LAYERS, "attend": few * LAYERS,
    }  # fmt: skip


def test_rows_of_different_lengths_see_their_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels(monkeypatch)
    plan = [(2, False), (1, False), (4, False)]
    plain = _passes(_model(), plan, rows=2)
    model = _model()
    lean_for(model, "cuda")
    for a, b in zip(plain, _passes(model, plan, rows=2), strict=True):
        assert mx.allclose(a, b, atol=0.02), mx.abs(a - b).max()


def test_more_tokens_than_a_kernel_takes_and_long_buffers_go_the_plain_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = plain_kernels(monkeypatch)
    model = _model()
    lean_for(model, "cuda")
    _passes(model, [(WIDEST + 1, True)])
    assert "rotate" not in called
    monkeypatch.setattr(fused, "LONGEST", 31)
    _passes(model, [(1, True)])
    assert "rotate" not in called
    monkeypatch.setattr(fused, "LONGEST", 32)
    _passes(model, [(1, True)])
    assert called.count("rotate") == LAYERS


def test_a_cache_of_mlx_lms_own_kind_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    called = plain_kernels(monkeypatch)
    plain, model = _model(), _model()
    lean_for(model, "cuda")
    block = mx.array([[3, 1, 4]], mx.uint32)
    caches = [Target(m, {}).new_native_cache() for m in (plain, model)]
    a, b = plain(block, cache=caches[0]), model(block, cache=caches[1])
    assert mx.allclose(a, b, atol=0.02)
    assert "rotate" not in called


def test_activations_of_another_type_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    called = plain_kernels(monkeypatch)
    model = _model()
    lean_for(model, "cuda")
    cache = SlotCache([None] * LAYERS, slack=16, length_step=32)
    cache.frame = Frame.exact(0, 2)
    x = mx.random.normal((1, 2, 96))
    out = model.layers[0](x, None, cache.layers[0])
    assert out.dtype == mx.float32
    assert not called
    assert mx.isfinite(out).all()


def test_parameters_keep_their_names_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels(monkeypatch)
    joined, model = _model(tied=False), _model(tied=False)
    join_projections(joined)
    config = {"quantization": {"bits": 4, "group_size": 32}}
    before = projections_of(joined, config)
    join_projections(model)
    assert fuse(model) == LAYERS + 2
    names = [dict(tree_flatten(m.parameters())) for m in (joined, model)]
    assert names[0].keys() == names[1].keys()
    assert all(mx.array_equal(names[0][key], names[1][key]) for key in names[0])
    assert projections_of(model, config) == before


@pytest.mark.parametrize(
    ("why", "model"),
    [
        ("float32", lambda: _model(dtype=mx.float32)),
        ("three bits", lambda: _model(bits=3)),
        ("a scaled rotation", lambda: _model(
            rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 64})),
        ("heads of 16", lambda: _model(head_dim=16, num_attention_heads=6)),
        ("biases", lambda: _model(attention_bias=True)),
        ("norms of queries and keys", tiny.qwen3_model),
        ("heads of 288", lambda: _model(head_dim=288)),
        ("too long to be normed", lambda: _model(hidden_size=2080)),
    ],
)  # fmt: skip
def test_what_the_kernels_do_not_know_stays(
    monkeypatch: pytest.MonkeyPatch, why: str, model: Any
) -> None:
    plain_kernels(monkeypatch)
    model = model()
    lean_for(model, "cuda")
    assert not is_fused(model), why
    assert not any(type(m).__module__ == fused.__name__ for m in model.modules())


def test_other_backends_keep_their_layers() -> None:
    for backend in ("cpu", "metal"):
        model = _model()
        lean_for(model, backend)
        assert not is_fused(model)


def test_a_layer_of_half_the_kind_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels(monkeypatch)
    model = _model()
    model.layers[1].mlp.down_proj = nn.Linear(160, 96, bias=True)
    mx.eval(model.parameters())
    lean_for(model, "cuda")
    assert [isinstance(layer, FusedBlock) for layer in model.layers] == [True, False, True]
