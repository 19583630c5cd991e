"""Qwen 3.5 with its head against transformers' target and a head made of its layers, float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine
from mlxcel.models import gated_delta
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime import mtp_files, state_cache
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.mtp_files import load_published_mtp
from tests.oracle_torch.scripted import scripted
from tests.support.running import one

NAMES = ("qwen-tied", "qwen-untied")
PROMPTS = (1, 9, 23)
DRAFTS, TOKENS = 4, 18
SETTINGS = Settings(length_step=64, prefill_chunk=7, max_width=8)
CLOSE = 1e-3


@dataclass
class Case:
    """A target with its head, and the oracle's arrays."""

    model: LoadedModel
    head: MTPHead
    cases: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def case(qwen_cases: Path) -> Callable[[str], Case]:
    def get(name: str) -> Case:
        folder = qwen_cases / name
        model = load_checkpoint(folder / "target", cache_dir=folder)
        head, _ = load_published_mtp(folder / "target", model.target)
        return Case(model, head, dict(np.load(folder / "cases.npz")), folder)

    return get


class Compared(MtpDrafter):
    """Keeps drafts by length, then swaps in scripted ones."""

    def __init__(self, chain: MtpChain, text: list[int]) -> None:
        super().__init__(chain)
        self.text = text
        self.logits: list[mx.array] = []
        self.seen: dict[int, tuple[list[int], list[Any]]] = {}

    def alter(self, tokens: mx.array, batch: Any) -> mx.array:
        length = int(np.array(batch.lengths)[0])
        made = [np.array(each[0, 0]) for each in self.logits]
        self.logits.clear()
        self.seen[length] = np.array(tokens)[0].tolist(), made
        return scripted(self.text, len(self.seen), length, tokens.shape[1])


def drafted(
    found: Case, monkeypatch: pytest.MonkeyPatch, length: int
) -> tuple[Compared, tuple[int, ...]]:
    """Run a prompt with the head; the drafts it made, and the answer."""
    prompt = found.cases[f"prompt_{length}"].tolist()
    chain = MtpChain(found.head, slack=SETTINGS.max_width, length_step=SETTINGS.length_step)
    drafter = Compared(chain, [*prompt, *found.cases[f"greedy_{length}"].tolist()])
    plain = MTPHead.logits

    def recorded(self: MTPHead, hidden: mx.array) -> mx.array:
        drafter.logits.append(plain(self, hidden))
        return drafter.logits[-1]

    with monkeypatch.context() as patch:
        patch.setattr(MTPHead, "logits", recorded)
        engine = Engine(found.model, drafter, SETTINGS)
        answer = one(engine, prompt, DRAFTS + 1, max_tokens=TOKENS, ignore_eos=True)
    return drafter, answer.token_ids


def compare(drafter: Compared, cases: dict[str, Any], length: int) -> int:
    """Assert that all drafts and logits are the oracle's; return how many rounds were."""
    rounds = 0
    for at, (tokens, made) in drafter.seen.items():
        if f"drafts_{length}_{at - length}" not in cases:
            continue  # the round after the end, in flight when it came
        assert tokens == cases[f"drafts_{length}_{at - length}"][: len(tokens)].tolist(), at
        wanted = cases[f"draft_logits_{length}_{at - length}"][: len(made)]
        np.testing.assert_allclose(np.array(made), wanted, atol=CLOSE, rtol=0)
        rounds += 1
    return rounds


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_target_drafts_and_text(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    """Logits; four chained steps a round; the text, with and without drafts."""
    found = case(name)
    prompt = found.cases[f"prompt_{length}"].tolist()
    logits = np.array(found.model.target.model(mx.array([prompt], mx.uint32))[0])
    np.testing.assert_allclose(logits, found.cases[f"logits_{length}"], atol=CLOSE, rtol=0)
    drafter, answer = drafted(found, monkeypatch, length)
    assert compare(drafter, found.cases, length) > 4
    assert answer == tuple(found.cases[f"greedy_{length}"].tolist())
    classic = one(
        Engine(found.model, None, SETTINGS), prompt, max_tokens=TOKENS, ignore_eos=True
    )
    assert classic.token_ids == answer


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_way(case: Callable[[str], Case], name: str, tmp_path: Path) -> None:
    found = case(name)
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True)
    engine = build_engine(found.folder / "target", "mtp", settings)
    for length in PROMPTS:
        prompt = found.cases[f"prompt_{length}"].tolist()
        answer = one(engine, prompt, 4, max_tokens=TOKENS, ignore_eos=True)
        assert answer.speculation.ran, answer.speculation.reason
        assert answer.token_ids == tuple(found.cases[f"greedy_{length}"].tolist())


# -- every trap, built in again -------------------------------------------------------


def _norms(patch: pytest.MonkeyPatch, stored: Any) -> None:
    patch.setattr(mtp_files, "centred_norms", stored)


def _hidden_first(patch: pytest.MonkeyPatch) -> None:
    def fuse(self: MTPHead, hidden: mx.array, tokens: mx.array) -> mx.array:
        embedding = self._target.body.embed_tokens(tokens)
        parts = [self.pre_fc_norm_hidden(hidden), self.pre_fc_norm_embedding(embedding)]
        return self.fc(mx.concatenate(parts, axis=-1))

    patch.setattr(MTPHead, "fuse", fuse)


def _before_the_last_norm(patch: pytest.MonkeyPatch) -> None:
    plain = MTPHead.forward

    def forward(self: MTPHead, x: mx.array, mask: Any, cache: Any) -> mx.array:
        norm, self.norm = self.norm, nn.Identity()
        out = plain(self, x, mask, cache)
        self.norm = norm
        return out

    patch.setattr(MTPHead, "forward", forward)


def _stale_state(patch: pytest.MonkeyPatch) -> None:
    """The target's own state keeps a rejected token; its text goes wrong too."""
    plain = gated_delta.replayed

    def replayed(layer: Any, state: Any, block: Any, count: Any, *rest: Any) -> Any:
        if isinstance(count, int):
            return plain(layer, state, block, min(count + 1, block.inputs.shape[1]))
        return plain(layer, state, block, count, mx.ones_like(rest[0]), rest[1])

    patch.setattr(state_cache, "replayed", replayed)


MISTAKES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no norm shifted": lambda patch: _norms(patch, lambda norms, raw: set()),
    "norms before fc not shifted": lambda patch: _norms(
        patch, lambda norms, raw: {name for name in norms if not name.startswith("pre_fc")}
    ),
    "hidden state first": _hidden_first,
    "hidden state before the norm": _before_the_last_norm,
    "state of a rejected draft": _stale_state,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_turns_it_red(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    with monkeypatch.context() as patch:
        MISTAKES[mistake](patch)
        found = case("qwen-tied")
        drafter, answer = drafted(found, patch, 23)
    if mistake != "state of a rejected draft":
        assert answer == tuple(found.cases["greedy_23"].tolist())
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)
