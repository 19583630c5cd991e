"""Each mistake that Gemma 4 assistants are prone to turns the comparison red, and no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant
from mlxcel.runtime import assistant as runtime_assistant
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.batch import Check
from mlxcel.runtime.frame import Frame
from tests.oracle_torch.assistants import DRAFTS, WINDOW, Pair, compare, drafted, fresh


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
    monkeypatch.setitem(target.body, "norm", nn.Identity())
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


def check_red(found: Pair, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Assert that the text stays the same and the comparison of the drafts fails."""
    drafter, answer = drafted(found, monkeypatch, 23, **options)
    assert answer == tuple(found.cases["greedy_23"].tolist())
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)


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
    check_red(found, monkeypatch)


def test_a_width_read_as_a_number_of_drafts(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the literature K counts drafts, here the block with its bonus token."""
    check_red(pair("plain"), monkeypatch, width=DRAFTS)


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
