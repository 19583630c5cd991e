"""A head's projections follow the kernel profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.decide.chips import identify
from mlxcel.decide.kernels import KernelVerdict, decide_kernels
from mlxcel.decide.rows import RowRule
from mlxcel.engine import served_form
from mlxcel.engine.governor import Facts, facts_of
from mlxcel.engine.prepare import build_engine
from mlxcel.engine.served_form import kernel_verdict, pass_rule, quantize_head
from mlxcel.errors import LoadError
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from tests.models.test_mtp import make_head
from tests.support.checkpoints import write_tiny_llama
from tests.support.running import one


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


# -- padding -------------------------------------------------------------------------

# 8 rows are cheaper than 2 to 7, as on an H200, but for the stored form only.
TIMES = {
    ("mlp", "stored"): {1: 87.0, 2: 153.0, 4: 286.0, 8: 71.0},
    ("mlp", "dense"): {1: 80.0, 2: 88.0, 4: 104.0, 8: 195.0},
}


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A kernel profile of our own; how often it was asked for."""
    asked: list[int] = []

    def verdict(*_: Any) -> KernelVerdict:
        asked.append(1)
        return decide_kernels(TIMES, {"mlp": 1.0})

    monkeypatch.setattr(served_form, "kernel_verdict", verdict)
    monkeypatch.setattr("mlxcel.engine.governor.kernel_verdict", verdict)
    return asked


def test_the_form_that_is_served_decides_about_padding(tmp_path: Path, profile: list[int]) -> None:
    settings = Settings(cache_dir=tmp_path)
    stored, dense = (load(tmp_path / name, name) for name in ("stored", "dense"))
    assert [pass_rule(model, settings).tokens(1, 4) for model in (stored, dense)] == [8, 4]
    invariant = Settings(cache_dir=tmp_path, numerics="invariant")
    assert [pass_rule(model, invariant).block for model in (stored, dense)] == [8, 4]


def test_without_a_profile_nothing_is_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise LoadError("no projection that could be timed was found")

    monkeypatch.setattr(served_form, "kernel_verdict", fail)
    model = load(tmp_path, "stored")
    assert pass_rule(model, Settings(cache_dir=tmp_path)) == RowRule()
    assert "no projection that could be timed" in caplog.text
    assert pass_rule(model, Settings(cache_dir=tmp_path, numerics="invariant")).block == 4


@pytest.mark.parametrize(
    ("numerics", "classic", "verify"), [("fast", 1, 8), ("invariant", 8, 8)]
)
def test_an_engine_feeds_what_the_profile_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: list[int],
    numerics: Any,
    classic: int,
    verify: int,
) -> None:
    settings = Settings(
        cache_dir=tmp_path, numerics=numerics, weights="stored", enable_mtp_b1=True,
        mtp_exactness="off",
    )  # fmt: skip
    engine = build_engine(write_tiny_llama(tmp_path / "tiny", bits=4), "lookup", settings)
    assert profile == []  # not before it is needed
    fed: list[tuple[int, int]] = []
    plain = Batch.verify

    def watch(self: Batch, *args: Any, pad_to: int, **more: Any) -> Any:
        check = plain(self, *args, pad_to=pad_to, **more)
        fed.append((check.packed.shape[2], check.states.shape[1]))
        return check

    monkeypatch.setattr(Batch, "verify", watch)
    outputs = [one(engine, (1, 2, 3, 1, 2, 3), width, max_tokens=60).token_ids for width in (1, 4)]
    assert outputs[0] == outputs[1]
    assert {tokens for width, tokens in fed if width == 1} == {classic}
    assert {tokens for width, tokens in fed if width > 1} == {verify}


def test_numerics_and_padding_are_in_the_key_of_verdicts(
    tmp_path: Path, profile: list[int]
) -> None:
    model = load(tmp_path, "stored")

    def facts(chip: str = "Apple M1 Ultra", **more: Any) -> Facts:
        return facts_of(model, "d", Settings(cache_dir=tmp_path, **more), chip=identify(chip))

    fast, invariant = facts(), facts(numerics="invariant")
    keys = [found.key(width) for found in (fast, invariant) for width in (4, 8)]
    assert [key.numerics for key in keys] == ["fast", "fast", "invariant", "invariant"]
    padding = [key.kernel.partition(", ")[2] for key in keys[:3]]
    assert padding == ["4 as 8", "", "1 as 8, 4 as 8"]
    assert len({key.digest for key in keys}) == 4


def test_classic_steps_as_dear_as_verifies_make_the_gate_run(
    tmp_path: Path, profile: list[int]
) -> None:
    model, chip = load(tmp_path, "stored"), identify("Apple M1 Ultra")
    fast = facts_of(model, "d", Settings(cache_dir=tmp_path), chip=chip).static
    invariant = Settings(cache_dir=tmp_path, numerics="invariant")
    slow = facts_of(model, "d", invariant, chip=chip).static
    assert (fast.run, slow.run) == (False, True)
    assert "with classic steps of 8 rows too" in slow.reason
