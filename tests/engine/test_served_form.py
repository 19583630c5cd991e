"""A head's projections follow the kernel profile."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine import served_form
from mlxcel.engine.served_form import kernel_verdict, quantize_head
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from tests.models.test_mtp import make_head
from tests.support.checkpoints import write_tiny_llama


def load(tmp_path: Path, weights: str) -> LoadedModel:
    return load_checkpoint(
        write_tiny_llama(tmp_path / "tiny", bits=4), cache_dir=tmp_path, weights=weights
    )


class Verdict:
    reason = "a test says so"

    def __init__(self, serve: str) -> None:
        self.serve = serve


def quantized(head: MTPHead) -> int:
    return sum(isinstance(m, nn.QuantizedLinear) for _, m in head.named_modules())


@pytest.mark.parametrize(
    ("weights", "serve", "wanted"),
    [("stored", "stored", True), ("stored", "dense", False), ("dense", "stored", False)],
)
def test_only_where_the_target_is_and_the_profile_prefers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, serve: str, wanted: bool
) -> None:
    monkeypatch.setattr(served_form, "kernel_verdict", lambda *_: Verdict(serve))
    model = load(tmp_path, weights)
    head = make_head(model.target)
    assert quantize_head(head, model, Settings(cache_dir=tmp_path)) == wanted
    assert quantized(head) == (8 if wanted else 0)


def test_a_quantized_head_still_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_form, "kernel_verdict", lambda *_: Verdict("stored"))
    model = load(tmp_path, "stored")
    head = make_head(model.target)
    tokens = mx.array([[1, 2, 3, 4]], mx.uint32)
    hidden = model.target.hidden(tokens, [None] * len(model.target.body.layers))

    def logits() -> np.ndarray:
        return np.array(head.logits(head.forward(head.fuse(hidden, tokens), "causal", None)))

    before = logits()
    quantize_head(head, model, Settings(cache_dir=tmp_path))
    after = logits()
    assert np.abs(after - before).max() > 0
    assert np.corrcoef(after.ravel(), before.ravel())[0, 1] > 0.95


def test_the_verdict_of_this_host_is_kept(tmp_path: Path) -> None:
    model, settings = load(tmp_path, "stored"), Settings(cache_dir=tmp_path)
    first = kernel_verdict(model, settings)
    assert kernel_verdict(model, settings).to_dict() == first.to_dict()
    assert len(list((tmp_path / "kernels").glob("*.json"))) == 1
