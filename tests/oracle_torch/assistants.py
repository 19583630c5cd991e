"""Runs of Gemma 4 assistants, and the comparison with the oracle's arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.assistant_drafter import AssistantDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.assistant_files import load_assistant
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from tests.oracle_torch.heads import check_count
from tests.oracle_torch.scripted import scripted
from tests.support.running import one

FAMILIES = ("plain", "ordered", "per-layer", "shared", "unified", "experts")
PROMPTS = (9, 16, 23)
WINDOW, DRAFTS, TOKENS = 16, 4, 18
SETTINGS = Settings(length_step=64, prefill_chunk=7, max_width=8)
CLOSE = 1e-3
Array = np.ndarray


@dataclass
class Pair:
    """One family: the target, its assistant, and the oracle's arrays."""

    model: LoadedModel
    assistant: Gemma4Assistant
    cases: dict[str, Array]
    folder: Path


def loader(cases: Path) -> Callable[[str], Pair]:
    """Loads a family on first use."""
    loaded: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in loaded:
            folder = cases / name
            model = load_checkpoint(folder / "target", cache_dir=folder)
            assistant = load_assistant(folder / "assistant", model.target)
            loaded[name] = Pair(model, assistant, dict(np.load(folder / "cases.npz")), folder)
        return loaded[name]

    return get


def fresh(pair: Pair) -> Pair:
    """With an assistant of its own, that may be spoilt."""
    return replace(pair, assistant=load_assistant(pair.folder / "assistant", pair.model.target))


class Compared(AssistantDrafter):
    """Keeps drafts with their logits by length, then swaps in scripted ones."""

    def __init__(self, chain: AssistantChain, text: list[int]) -> None:
        super().__init__(chain)
        self.text = text
        self.logits: list[tuple[mx.array, mx.array | None]] = []
        self.seen: dict[int, tuple[list[int], list[tuple[Array, Array | None]]]] = {}

    def alter(self, tokens: mx.array, batch: object) -> mx.array:
        length = int(np.array(batch.lengths)[0])  # type: ignore[attr-defined]
        made = [
            (np.array(each[0, 0]), None if ids is None else np.array(ids[0, 0]))
            for each, ids in self.logits
        ]
        self.logits.clear()
        self.seen[length] = np.array(tokens)[0].tolist(), made
        return scripted(self.text, len(self.seen), length, tokens.shape[1])


def drafted(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    width: int = DRAFTS + 1,
    **chain: object,
) -> tuple[Compared, tuple[int, ...]]:
    """Run a prompt with the assistant; the drafts it made, and the answer."""
    cases = pair.cases
    prompt = cases[f"prompt_{length}"].tolist()
    options = {"window": WINDOW + 1, **chain}
    drafter = Compared(
        AssistantChain(pair.assistant, **options),  # type: ignore[arg-type]
        [*prompt, *cases[f"greedy_{length}"].tolist()],
    )
    plain = Gemma4Assistant.logits

    def recorded(self: Gemma4Assistant, hidden: mx.array) -> tuple[mx.array, mx.array | None]:
        found = plain(self, hidden)
        drafter.logits.append(found)
        return found

    monkeypatch.setattr(Gemma4Assistant, "logits", recorded)
    engine = Engine(pair.model, drafter, SETTINGS)
    answer = one(engine, prompt, width, max_tokens=TOKENS, ignore_eos=True)
    monkeypatch.setattr(Gemma4Assistant, "logits", plain)
    return drafter, answer.token_ids


def compare(drafter: Compared, cases: dict[str, Array], length: int) -> int:
    """Assert that all drafts and logits are the oracle's; return how many rounds were."""
    rounds = 0
    for at, (tokens, made) in drafter.seen.items():
        if f"drafts_{length}_{at - length}" not in cases:
            continue  # the round after the end, in flight when it came
        check_count(tokens, at - length)
        wanted = cases[f"drafts_{length}_{at - length}"][: len(tokens)].tolist()
        assert tokens == wanted, at
        oracle = cases[f"draft_logits_{length}_{at - length}"]
        for step, (logits, ids) in enumerate(made):
            whole = oracle[step]
            if ids is not None:
                # transformers fills the rest with the least logit, less one.
                assert set(np.flatnonzero(whole > whole.min() + 0.5)) == set(ids.tolist())
                whole = whole[ids]
            np.testing.assert_allclose(logits, whole, atol=CLOSE, rtol=0)
        rounds += 1
    return rounds
