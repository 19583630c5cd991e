"""Gemma 4 targets and assistants against transformers', float32, tiny random checkpoints.

Every family is loaded from files in the published layout. Drafts are compared at every length
that a run with scripted acceptance comes by, so before, at and after the window, and after
rejections of every count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine
from mlxcel.models.lean import lean_modules
from tests.oracle_torch.assistants import (
    CLOSE,
    FAMILIES,
    PROMPTS,
    SETTINGS,
    TOKENS,
    Pair,
    compare,
    drafted,
    fresh,
)
from tests.support.running import one


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_target_logits(pair: Callable[[str], Pair], name: str, length: int) -> None:
    found = pair(name)
    ids = mx.array([found.cases[f"prompt_{length}"].tolist()], mx.uint32)
    logits = np.array(found.model.target.model(ids)[0])
    np.testing.assert_allclose(logits, found.cases[f"logits_{length}"], atol=CLOSE, rtol=0)


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_and_text(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    """Four chained steps a round; the text equals transformers', with and without drafts."""
    found = pair(name)
    drafter, answer = drafted(found, monkeypatch, length)
    assert compare(drafter, found.cases, length) > 4
    assert answer == tuple(found.cases[f"greedy_{length}"].tolist())
    prompt = found.cases[f"prompt_{length}"].tolist()
    classic = one(
        Engine(found.model, None, SETTINGS), prompt, max_tokens=TOKENS, ignore_eos=True
    )
    assert classic.token_ids == answer


@pytest.mark.parametrize("name", FAMILIES)
def test_the_whole_way(pair: Callable[[str], Pair], name: str, tmp_path: Path) -> None:
    """From the folders through gate and scheduler, with the assistant's own drafts."""
    found = pair(name)
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True, mtp_exactness="off")
    engine = build_engine(found.folder / "target", found.folder / "assistant", settings)
    for length in PROMPTS:
        prompt = found.cases[f"prompt_{length}"].tolist()
        answer = one(engine, prompt, 4, max_tokens=TOKENS, ignore_eos=True)
        assert answer.speculation.ran
        assert answer.token_ids == tuple(found.cases[f"greedy_{length}"].tolist())


def test_lean_modules_change_nothing(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fresh(pair("shared"))
    assert lean_modules(found.assistant) > 10
    drafter, _ = drafted(found, monkeypatch, 23)
    assert compare(drafter, found.cases, 23) > 4
