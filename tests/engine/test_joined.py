"""Joined projections under the engine: its tokens are the plain model's, drafted or not."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from benchmarks.model import random_head
from mlxcel.config import Settings
from mlxcel.engine.alone import run_alone
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.engine import Engine
from mlxcel.models.joined import join_projections
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny

SETTINGS = Settings(length_step=16)


def _model(*, join: bool, stored: bool) -> Any:
    model = tiny.llama_model()
    if stored:
        nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    if join:
        assert join_projections(model) == 2 * len(model.layers)
    return tiny.loaded(model)


def tokens_of(model: Any, drafter: Drafter | None, temperature: float) -> tuple[int, ...]:
    """What a model writes, with a drafter or classic."""
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=5, ignore_eos=True)
    request = Request(prompt_ids=(3, 1, 4, 1, 5, 9), params=params, width=4)
    return run_alone(Engine(model, drafter, SETTINGS), request).token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("stored", [False, True], ids=["dense", "stored"])
def test_speculative_and_classic_tokens_are_the_plain_models(
    stored: bool, temperature: float
) -> None:
    wanted = tokens_of(_model(join=False, stored=stored), None, temperature)
    model = _model(join=True, stored=stored)
    assert tokens_of(model, None, temperature) == wanted
    head = random_head(model, SETTINGS)
    assert join_projections(head._chain.head) == 2
    for drafter in (drafters.make("self", model, SETTINGS), head):
        assert tokens_of(model, drafter, temperature) == wanted
