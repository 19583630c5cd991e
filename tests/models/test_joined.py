"""Joined projections: the same numbers from fewer kernels."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mlxcel.models.joined import (
    WIDEST,
    AddedMasks,
    JoinedAttention,
    JoinedSwiGLU,
    join_projections,
    joined,
)
from mlxcel.models.lean import lean_for
from mlxcel.runtime.caches import slot_cache
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kernel_profile import projections_of
from tests.support import tiny

MODELS = {
    "llama": tiny.llama_model,
    "qwen2, with biases": tiny.qwen2_model,
    "qwen3, with norms": tiny.qwen3_model,
}


def _pair(make: Any, *, stored: bool) -> tuple[Any, Any]:
    models = make(), make()
    models[1].update(models[0].parameters())  # biases are not seeded
    for model in models:
        if stored:
            nn.quantize(model, group_size=32, bits=4)
        mx.eval(model.parameters())
    assert join_projections(models[1]) == 2 * len(models[1].layers)
    return models


def _ragged(model: Any, width: int) -> mx.array:
    """Logits of a block of two rows of different lengths, behind a prompt."""
    cache = slot_cache([None] * len(model.layers), slack=8, length_step=32)
    cache.frame = Frame(mx.array([0, 0], mx.int32), 6, 6)
    prompt = mx.array([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]], mx.uint32)
    model(prompt, cache=cache.layers)
    cache.frame = Frame(mx.array([6, 4], mx.int32), width, 6 + width)
    block = mx.array([[11, 12, 13, 14], [21, 22, 23, 24]], mx.uint32)[:, :width]
    return model(block, cache=cache.layers)


@pytest.mark.parametrize("stored", [False, True], ids=["dense", "stored"])
@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_of_separate_projections(name: str, stored: bool) -> None:
    plain, lean = _pair(MODELS[name], stored=stored)
    prompt = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]], mx.uint32)
    assert mx.allclose(lean(prompt), plain(prompt), rtol=1e-5, atol=1e-5)
    for width in (1, 4):  # without and with a mask made of numbers
        assert mx.allclose(_ragged(lean, width), _ragged(plain, width), rtol=1e-5, atol=1e-5)


def test_it_has_the_same_weights_and_the_same_kernel_profile() -> None:
    plain, lean = _pair(tiny.llama_model, stored=True)
    sizes = [sum(v.nbytes for _, v in tree_flatten(m.parameters())) for m in (plain, lean)]
    assert sizes[0] == sizes[1]
    assert projections_of(lean, {}) == projections_of(plain, {})


def test_projections_that_are_not_alike_stay_apart() -> None:
    dense, other = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=True)
    assert joined([dense, other]) is None
    stored = nn.QuantizedLinear(32, 8, bias=False, group_size=32, bits=4)
    finer = nn.QuantizedLinear(32, 8, bias=False, group_size=32, bits=8)
    assert joined([stored, finer]) is None
    assert joined([dense, stored]) is None
    half = copy.copy(dense)
    half.weight = dense.weight.astype(mx.bfloat16)
    assert joined([dense, half]) is None

    class Adapted(nn.Linear):
        pass

    assert joined([Adapted(32, 8, bias=False), Adapted(32, 8, bias=False)]) is None
    both = joined([dense, nn.Linear(32, 4, bias=False)])
    assert both is not None
    assert both.parts == (8, 4)


def test_a_mask_is_made_once_per_pass_and_hides_what_it_hid() -> None:
    masks = AddedMasks()
    mask = mx.array([[[[True, False, True], [True, True, False]]]])
    added = masks.of(mask, (1, 2, 2, 3), mx.float16)
    assert added.dtype == mx.float16
    assert mx.array_equal(added == 0, mx.broadcast_to(mask, (1, 2, 2, 3)))
    assert masks.of(mask, (1, 2, 2, 3), mx.float16) is added
    assert masks.of(mask, (1, 2, 2, 3), mx.float32).dtype == mx.float32
    following = mx.array([[[[True, True, True], [True, True, True]]]])
    assert masks.of(mask, (1, 2, 2, 3), mx.float32) is masks.of(mask, (1, 2, 2, 3), mx.float32)
    assert mx.all(masks.of(following, (1, 2, 2, 3), mx.float32) == 0)


@pytest.mark.parametrize("mask", [None, "causal", mx.zeros((1, 1, 2, 3))], ids=str)
def test_other_masks_stay(mask: Any) -> None:
    assert AddedMasks().of(mask, (1, 2, 2, 3), mx.float32) is mask


@pytest.mark.parametrize("queries", [1, WIDEST + 1])
def test_a_single_query_and_a_prompts_chunk_keep_their_mask(queries: int) -> None:
    mask = mx.ones((1, 1, queries, 3), mx.bool_)
    assert AddedMasks().of(mask, (1, 2, queries, 3), mx.float32) is mask


def test_both_masks_of_a_model_with_windows_are_kept() -> None:
    masks, shape = AddedMasks(), (1, 2, 2, 3)
    whole, window = (mx.ones((1, 1, 2, 3), mx.bool_) for _ in range(2))
    first = [masks.of(mask, shape, mx.float32) for mask in (whole, window)]
    for _ in range(2):
        for mask, added in zip((whole, window), first, strict=True):
            assert masks.of(mask, shape, mx.float32) is added


def test_each_backend_gets_its_own_modules() -> None:
    models = {backend: tiny.llama_model() for backend in ("cpu", "cuda", "metal")}
    counts = {backend: lean_for(model, backend) for backend, model in models.items()}
    layers = {backend: model.layers[0] for backend, model in models.items()}
    assert counts["metal"] == 0
    assert counts["cuda"] == 2 * len(models["cuda"].layers)
    assert isinstance(layers["cuda"].self_attn, JoinedAttention)
    assert isinstance(layers["cuda"].mlp, JoinedSwiGLU)
    assert counts["cpu"] > counts["cuda"]
