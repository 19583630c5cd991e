"""A drafter's projections quantized at load: where, how, and what is left alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine import drafter_form
from mlxcel.engine.drafter_form import quantize_drafter
from mlxcel.engine.prepare import build_engine
from mlxcel.models.target import Target
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from mlxcel.runtime.representation import quantize_projections
from tests.models.test_mtp import make_head
from tests.support import tiny
from tests.support.assistants import tiny_assistant
from tests.support.checkpoints import write_tiny_llama


def load(tmp_path: Path, weights: str, bits: int | None = 4) -> LoadedModel:
    folder = write_tiny_llama(tmp_path / "tiny", bits=bits)
    return load_checkpoint(folder, cache_dir=tmp_path, weights=weights)


class Verdict:
    reason = "a test says so"

    def __init__(self, serve: str) -> None:
        self.serve = serve


def quantized(drafter: nn.Module) -> int:
    return sum(isinstance(m, nn.QuantizedLinear) for _, m in drafter.named_modules())


@pytest.mark.parametrize(
    ("weights", "serve", "wanted"),
    [("stored", "stored", 8), ("stored", "dense", 0), ("dense", "stored", 0)],
)
def test_beside_a_quantized_target_as_the_kernel_profile_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, serve: str, wanted: int
) -> None:
    monkeypatch.setattr(drafter_form, "kernel_verdict", lambda *_, **__: Verdict(serve))
    model = load(tmp_path, weights)
    head = make_head(model.target)
    form = quantize_drafter(head, model, Settings(cache_dir=tmp_path))
    assert (quantized(head), form.projections) == (wanted, wanted)
    assert form.bits == (4 if wanted else 0)
    assert form.key == ("4-bit" if wanted else "dense")


@pytest.mark.parametrize(("backend", "bits"), [("cpu", 0), ("metal", 4), ("cuda", 4)])
def test_beside_a_dense_target_as_is_the_rule_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, bits: int
) -> None:
    model = load(tmp_path, "auto", bits=None)
    monkeypatch.setattr(drafter_form, "detect_backend", lambda: backend)
    form = quantize_drafter(make_head(model.target), model, Settings(cache_dir=tmp_path))
    assert form.bits == bits


@pytest.mark.parametrize(("asked", "bits"), [("off", 0), ("4", 4), ("8", 8)])
def test_the_setting_outranks_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any, bits: int
) -> None:
    monkeypatch.setattr(drafter_form, "kernel_verdict", lambda *_, **__: Verdict("dense"))
    model = load(tmp_path, "stored")
    head = make_head(model.target)
    form = quantize_drafter(head, model, Settings(cache_dir=tmp_path, drafter_bits=asked))
    assert (form.bits, form.reason) == (bits, "asked for")
    assert {m.bits for _, m in head.named_modules() if hasattr(m, "bits")} == ({bits} - {0})


def test_bytes_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(tmp_path, "dense")
    head = make_head(model.target)
    dense = sum(m.weight.nbytes for _, m in head.named_modules() if isinstance(m, nn.Linear))
    with caplog.at_level(logging.INFO, logger="mlxcel"):
        form = quantize_drafter(head, model, Settings(cache_dir=tmp_path, drafter_bits="4"))
    assert form.before == dense
    # 4 bits, and a scale and a bias of 32 bits for each group of 32 or 64.
    assert dense * (4 + 1) / 32 <= form.after <= dense * (4 + 2) / 32
    assert form.summary in caplog.text
    assert f"8 projections at 4 bits, {dense / 2**20:.1f} to " in form.summary


def test_embeddings_norms_and_clusters_stay() -> None:
    assistant = tiny_assistant(Target(tiny.gemma4_model(), {}), ordered=True)
    done = quantize_projections(assistant, 4, keep=("centroids",))
    assert done.projections == quantized(assistant) == 4 * 5 + 2
    assert type(assistant.model.embed_tokens) is nn.Embedding
    assert type(assistant.masked_embedding.centroids) is nn.Linear
    assert type(assistant.model.norm) is nn.RMSNorm
    # Rows of 64 and 128 columns go in groups of 64, those of 32 in groups of 32.
    assert assistant.pre_projection.group_size == 64
    assert assistant.post_projection.group_size == 32
    again = quantize_projections(assistant, 8)
    assert again.projections == 0
    assert assistant.pre_projection.bits == 4


def test_rows_that_no_group_divides_stay() -> None:
    module = nn.Sequential(nn.Linear(48, 8), nn.Linear(64, 8, bias=True))
    assert quantize_projections(module, 4).projections == 1
    assert type(module.layers[0]) is nn.Linear


def test_a_quantized_head_still_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_form, "kernel_verdict", lambda *_, **__: Verdict("stored"))
    model = load(tmp_path, "stored")
    head = make_head(model.target)
    tokens = mx.array([[1, 2, 3, 4]], mx.uint32)
    hidden = model.target.hidden(tokens, [None] * len(model.target.body.layers))

    def logits() -> np.ndarray:
        return np.array(head.logits(head.forward(head.fuse(hidden, tokens), "causal", None)))

    before = logits()
    quantize_drafter(head, model, Settings(cache_dir=tmp_path))
    after = logits()
    assert np.abs(after - before).max() > 0
    assert np.corrcoef(after.ravel(), before.ravel())[0, 1] > 0.95


@pytest.mark.parametrize(("bits", "form"), [("off", ""), ("4", " 4-bit")])
def test_draft_models_too(tmp_path: Path, bits: Any, form: str) -> None:
    settings = Settings(
        cache_dir=tmp_path, enable_mtp_b1=True, mtp_exactness="off", drafter_bits=bits
    )
    target = write_tiny_llama(tmp_path / "target")
    engine = build_engine(target, write_tiny_llama(tmp_path / "draft", seed=1), settings)
    assert engine.drafter is not None
    assert engine.drafter.fingerprint.endswith(form or engine.drafter.fingerprint)
    assert ("at 4 bits" in engine.drafter.weights) == bool(form)


def test_a_quantized_draft_model_stays(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, drafter_bits="8", weights="stored")
    target = write_tiny_llama(tmp_path / "target")
    engine = build_engine(target, write_tiny_llama(tmp_path / "draft", bits=4), settings)
    assert engine.drafter is not None
    assert " at " not in engine.drafter.weights
    assert "stored" in engine.drafter.weights
