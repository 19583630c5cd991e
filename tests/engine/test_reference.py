"""Classic decode equals mlx-lm's own generation, token for token."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.models.lean import LeanRMSNorm, LeanRoPE, lean_modules
from tests.engine.test_twin import MODELS
from tests.support import tiny
from tests.support.running import one


@pytest.mark.parametrize("prompt_length", [1, 32, 90])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_equals_mlx_lm(name, prompt_length):
    model = MODELS[name]()
    prompt = [(7 * i + 3) % tiny.VOCAB for i in range(prompt_length)]
    steps = generate_step(mx.array(prompt), model, max_tokens=60)
    reference = [int(token) for token, _ in itertools.islice(steps, 60)]
    settings = Settings(length_step=64, prefill_chunk=16)
    ours = one(Engine(tiny.loaded(model), None, settings), prompt, max_tokens=60)
    assert list(ours.token_ids) == reference


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma4"])
def test_lean_modules_change_the_numbers_by_rounding_only(name):
    model, lean = MODELS[name](), MODELS[name]()
    assert lean_modules(lean) > 0
    kinds = {type(module) for _, module in lean.named_modules()}
    assert kinds & {LeanRMSNorm, LeanRoPE}
    tokens = mx.array([[(5 * i) % tiny.VOCAB for i in range(40)]])
    difference = mx.abs(model(tokens) - lean(tokens)).max().item()
    assert difference < 1e-4
    ours = one(Engine(tiny.loaded(lean), None, Settings()), [3, 9, 20], max_tokens=60)
    plain = one(Engine(tiny.loaded(model), None, Settings()), [3, 9, 20], max_tokens=60)
    assert ours.token_ids == plain.token_ids
