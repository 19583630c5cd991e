"""Our CUDA kernels under the engine: its tokens are the plain model's, drafted or not.

They are computed in plain MLX here, see `tests.support.cuda_reference`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from benchmarks.model import random_head
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.served_form import alike_tokens, pass_rule
from mlxcel.models.cuda import WIDEST
from mlxcel.models.fused import is_fused
from mlxcel.models.lean import lean_for
from tests.engine.test_joined import SETTINGS, tokens_of
from tests.support import drafters, tiny
from tests.support.cuda_reference import plain_kernels


def _model(*, lean: bool, stored: bool) -> Any:
    model = tiny.llama_model(head_dim=32)
    model.set_dtype(mx.float16)
    if stored:
        nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    if lean:
        lean_for(model, "cuda")
        assert is_fused(model)
    return tiny.loaded(model)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("stored", [False, True], ids=["dense", "stored"])
def test_speculative_and_classic_tokens_are_the_plain_models(
    monkeypatch: pytest.MonkeyPatch, stored: bool, temperature: float
) -> None:
    called = plain_kernels(monkeypatch)
    wanted = tokens_of(_model(lean=False, stored=stored), None, temperature)
    assert not called
    model = _model(lean=True, stored=stored)
    assert tokens_of(model, None, temperature) == wanted
    for drafter in (drafters.make("self", model, SETTINGS), random_head(model, SETTINGS)):
        assert tokens_of(model, drafter, temperature) == wanted
    assert "attend" in called


def test_passes_over_our_kernels_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels(monkeypatch)

    narrow = SimpleNamespace(padding={2: 8, 3: 8, 4: 8})
    for name in ("kernel_verdict", "served_verdict"):
        monkeypatch.setattr(f"mlxcel.engine.served_form.{name}", lambda *_: narrow)
    assert pass_rule(_model(lean=False, stored=True), SETTINGS).tokens(1, 4) == 8
    assert pass_rule(_model(lean=True, stored=True), SETTINGS).tokens(1, 4) == 4


def test_passes_are_alike_up_to_the_widest_of_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels(monkeypatch)
    fused, plain = _model(lean=True, stored=True), _model(lean=False, stored=True)
    assert Engine(fused, None, SETTINGS).scheduler.alike == WIDEST
    assert Engine(plain, None, SETTINGS).scheduler.alike == 0
    assert alike_tokens(fused, Settings(numerics="invariant")) == 0
