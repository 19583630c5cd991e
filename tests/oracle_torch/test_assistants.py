"""Gemma 4 targets and assistants against transformers', float32, tiny random checkpoints.

Every family is loaded from files in the published layout. Drafts are compared at every length
that a run with scripted acceptance comes by, so before, at and after the window, and after
rejections of every count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.assistant_drafter import AssistantDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine
from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant
from mlxcel.models.lean import lean_modules
from mlxcel.runtime import assistant as runtime_assistant
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.assistant_files import load_assistant
from mlxcel.runtime.batch import Check
from mlxcel.runtime.frame import Frame
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


@pytest.fixture(scope="module")
def pair(oracle_cases: Path) -> Callable[[str], Pair]:
    loaded: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in loaded:
            folder = oracle_cases / name
            model = load_checkpoint(folder / "target", cache_dir=folder)
            assistant = load_assistant(folder / "assistant", model.target)
            loaded[name] = Pair(model, assistant, dict(np.load(folder / "cases.npz")), folder)
        return loaded[name]

    return get


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


# -- every trap, built in again -------------------------------------------------------


def _unscaled(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    def joined(self: Gemma4Assistant, tokens: mx.array, state: mx.array) -> mx.array:
        return mx.concatenate([self._target.body.embed_tokens(tokens), state], axis=-1)

    monkeypatch.setattr(Gemma4Assistant, "joined", joined)


def _hidden_first(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    plain = Gemma4Assistant.joined

    def joined(self: Gemma4Assistant, tokens: mx.array, state: mx.array) -> mx.array:
        both = plain(self, tokens, state)
        half = both.shape[-1] // 2
        return mx.concatenate([both[..., half:], both[..., :half]], axis=-1)

    monkeypatch.setattr(Gemma4Assistant, "joined", joined)


def _stale_keys(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    plain = runtime_assistant.view

    def later(layer: object, frame: Frame, window: int | None) -> object:
        return plain(layer, Frame(frame.offset + 1, 1, frame.bound + 1), window)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime_assistant, "view", later)


def _stale_state(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    def last(chain: AssistantChain, check: object) -> mx.array:
        chain.state = check.hidden[:, -1:]  # type: ignore[attr-defined]
        return chain.state

    monkeypatch.setattr(AssistantChain, "absorb", last)


def _row_before(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """The number of accepted drafts taken for the number of rows kept, which is one more."""
    plain = AssistantChain.absorb

    def absorb(chain: AssistantChain, check: Check) -> mx.array:
        return plain(chain, replace(check, accepted=mx.maximum(check.accepted - 1, 0)))

    monkeypatch.setattr(AssistantChain, "absorb", absorb)


def _before_the_targets_last_norm(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """The norm is moved from the target's body to its output head."""
    target, norm = pair.model.target, pair.model.target.body.norm
    plain = target.logits
    monkeypatch.setattr(target.body, "norm", nn.Identity())
    monkeypatch.setattr(target, "logits", lambda hidden: plain(norm(hidden)))


def _positions_move_on(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """As in a head that keeps a cache, where each draft stands behind the one before."""
    draft, step = AssistantChain.draft, Gemma4Assistant.step
    drafts: list[mx.array] = []

    def begun(*args: Any, **options: Any) -> mx.array:
        drafts.clear()
        return draft(*args, **options)

    def later(self: Gemma4Assistant, token: mx.array, *args: Any) -> mx.array:
        drafts.append(token)
        return step(self, token, *args[:-1], args[-1] + len(drafts) - 1)

    monkeypatch.setattr(AssistantChain, "draft", begun)
    monkeypatch.setattr(Gemma4Assistant, "step", later)


def _soft_cap(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    plain = Gemma4Assistant.logits

    def capped(self: Gemma4Assistant, hidden: mx.array) -> tuple[mx.array, mx.array | None]:
        logits, ids = plain(self, hidden)
        return 30 * mx.tanh(logits / 30), ids

    monkeypatch.setattr(Gemma4Assistant, "logits", capped)


def _scaled_queries(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    for layer in pair.assistant.model.layers:
        layer.self_attn.scale = 0.25


def _rotated_whole(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """The full layer's queries rotated as those of sliding layers."""
    pair.assistant.model.layers[-1].self_attn.rope = nn.RoPE(32, base=10000.0)


def _no_last_norm(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    pair.assistant.model.norm = nn.Identity()


def _norms_plus_one(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    for name, module in pair.assistant.named_modules():
        if name.endswith("norm"):
            module.weight = module.weight + 1


def _no_scalar(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    for layer in pair.assistant.model.layers:
        layer.layer_scalar = mx.ones((1,))


def _other_layer(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    kinds = dict(pair.assistant.sources)
    first = kinds | {"sliding_attention": kinds["sliding_attention"] - 1}
    pair.assistant._sources = tuple(first.items())


MISTAKES = {
    "no embedding scale": _unscaled,
    "hidden state first": _hidden_first,
    "keys of a rejected draft": _stale_keys,
    "hidden state of a rejected draft": _stale_state,
    "hidden state of the row before": _row_before,
    "target's state before its last norm": _before_the_targets_last_norm,
    "positions move on with the drafts": _positions_move_on,
    "soft cap": _soft_cap,
    "scaled queries": _scaled_queries,
    "rotation of the other kind": _rotated_whole,
    "no last norm": _no_last_norm,
    "norms plus one": _norms_plus_one,
    "no layer scalar": _no_scalar,
    "keys of the layer before": _other_layer,
}


def fresh(pair: Pair) -> Pair:
    """With an assistant of its own, that may be spoilt."""
    return replace(pair, assistant=load_assistant(pair.folder / "assistant", pair.model.target))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_turns_it_red(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """And it changes no token of the text."""
    found = fresh(pair("plain"))
    with monkeypatch.context() as patch:
        MISTAKES[mistake](patch, found)
        drafter, answer = drafted(found, patch, 23)
    assert answer == tuple(found.cases["greedy_23"].tolist())
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)


def test_clusters_in_order_of_ids_turn_it_red(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fresh(pair("ordered"))
    head = found.assistant.masked_embedding
    head.token_ordering = mx.arange(head.token_ordering.size).astype(head.token_ordering.dtype)
    drafter, answer = drafted(found, monkeypatch, 23)
    assert answer == tuple(found.cases["greedy_23"].tolist())
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)


def test_a_width_read_as_a_number_of_drafts(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the literature K counts drafts, here the block with its bonus token."""
    found = pair("plain")
    drafter, answer = drafted(found, monkeypatch, 23, width=DRAFTS)
    assert answer == tuple(found.cases["greedy_23"].tolist())
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)


@pytest.mark.parametrize(
    "chain", [{"position": "last"}, {"window": WINDOW}], ids=["position", "window"]
)
def test_another_rule_turns_it_red(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, chain: dict[str, object]
) -> None:
    found = pair("plain")
    drafter, _ = drafted(found, monkeypatch, 23, **chain)
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)


def test_lean_modules_change_nothing(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fresh(pair("shared"))
    assert lean_modules(found.assistant) > 10
    drafter, _ = drafted(found, monkeypatch, 23)
    assert compare(drafter, found.cases, 23) > 4
