"""The gate on the real checkpoint: one machine is narrow and wide, by the form it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.engine.prepare import build_engine
from mlxcel.types import Completion, Request, SamplingParams
from tests.engine.test_exactness import drop_a_key

MESSAGES = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def ask(
    folder: Path, cache: Path, speculation: str = "auto", tokens: int = 10, **settings: Any
) -> Completion:
    engine = build_engine(folder, "demo", Settings(cache_dir=cache, **settings))
    prompt = engine.model.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.add(
        Request(prompt_ids=tuple(prompt), params=params, speculation=speculation)  # type: ignore[arg-type]
    )
    found = None
    while engine.busy:
        for chunk in engine.step():
            found = chunk.completion or found
    assert found is not None
    return found


@pytest.mark.measured
def test_stored_declines_and_dense_runs(demo_folder: Path, cache: Path) -> None:
    stored = ask(demo_folder, cache, weights="stored", mtp_adaptive=False, tokens=6)
    assert (stored.decision.run, stored.decision.source) == (False, "gate")
    assert "narrow" in stored.decision.reason
    assert not stored.speculation.ran
    dense = ask(demo_folder, cache, weights="dense", mtp_adaptive=False)
    assert (dense.decision.run, dense.decision.source) == (True, "gate")
    assert "wide" in dense.decision.reason
    assert dense.speculation.ran
    assert list(cache.glob("kernels/*.json"))
    assert list(cache.glob("exactness/*.json"))


def test_the_override_wins(demo_folder: Path, cache: Path) -> None:
    off = ask(demo_folder, cache, weights="dense", enable_mtp_b1=False)
    assert (off.decision.run, off.decision.source) == (False, "override")
    forced = ask(
        demo_folder, cache, weights="stored", enable_mtp_b1=True, mtp_exactness="off", tokens=5
    )
    assert (forced.decision.run, forced.decision.source) == (True, "override")
    assert forced.speculation.ran


def test_a_broken_cache_is_vetoed_before_any_token(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_a_key(monkeypatch)
    found = ask(demo_folder, tmp_path, weights="dense", enable_mtp_b1=True)
    assert (found.decision.run, found.decision.source) == (False, "exactness")
    assert found.speculation.proposed == 0
    insisting = ask(demo_folder, tmp_path, "on", weights="dense")
    assert (insisting.finish_reason, insisting.token_ids) == ("error", ())
