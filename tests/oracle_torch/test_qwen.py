"""Qwen 3.5 and Qwen3-Next against transformers', their heads against ones of its layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxcel.config import Settings
from mlxcel.engine.prepare import build_engine
from mlxcel.models import gated_delta
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime import mtp_files, state_cache
from mlxcel.runtime.mtp_files import load_published_mtp
from tests.oracle_torch.head_traps import (
    CHAIN,
    Mistake,
    before_the_targets_last_norm,
    check_letter,
    check_red,
)
from tests.oracle_torch.heads import (
    PROMPTS,
    TOKENS,
    Case,
    case_loader,
    check_case,
    compare,
    drafted,
)
from tests.support.running import one

NAMES = ("qwen-tied", "qwen-untied", "qwen-experts", "qwen-next")


@pytest.fixture(scope="module")
def case(qwen_cases: Path) -> Callable[[str], Case]:
    return case_loader(
        qwen_cases, lambda folder, target: load_published_mtp(folder / "target", target)[0]
    )


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_target_drafts_and_text(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    """Logits; four chained steps a round; the text, with and without drafts."""
    check_case(case(name), monkeypatch, length)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_way(case: Callable[[str], Case], name: str, tmp_path: Path) -> None:
    found = case(name)
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True)
    engine = build_engine(found.folder / "target", "mtp", settings)
    for length in PROMPTS:
        answer = one(engine, found.prompt(length), 4, max_tokens=TOKENS, ignore_eos=True)
        assert answer.speculation.ran, answer.speculation.reason
        assert answer.token_ids == found.greedy(length)


# -- every trap, built in again -------------------------------------------------------


def _hidden_first(patch: pytest.MonkeyPatch, found: Case) -> None:
    def fuse(self: MTPHead, hidden: mx.array, tokens: mx.array) -> mx.array:
        embedding = self._target.body.embed_tokens(tokens)
        parts = [self.pre_fc_norm_hidden(hidden), self.pre_fc_norm_embedding(embedding)]
        return self.fc(mx.concatenate(parts, axis=-1))

    patch.setattr(MTPHead, "fuse", fuse)


def _norms_exchanged(patch: pytest.MonkeyPatch, found: Case) -> None:
    head = found.head
    embedding, hidden = head.pre_fc_norm_embedding, head.pre_fc_norm_hidden
    patch.setitem(head, "pre_fc_norm_embedding", hidden)
    patch.setitem(head, "pre_fc_norm_hidden", embedding)


def _no_last_norm(patch: pytest.MonkeyPatch, found: Case) -> None:
    patch.setitem(found.head, "norm", nn.Identity())


def _state_goes_on_without_norm(patch: pytest.MonkeyPatch, found: Case) -> None:
    norm, plain = found.head.norm, MTPHead.logits
    patch.setitem(found.head, "norm", nn.Identity())
    patch.setattr(MTPHead, "logits", lambda self, hidden: plain(self, norm(hidden)))


def _shifted_twice(patch: pytest.MonkeyPatch, found: Case) -> None:
    for name, module in found.head.named_modules():
        if "norm" in name.rpartition(".")[2]:
            module.weight = module.weight + 1


MISTAKES: dict[str, Mistake] = CHAIN | {
    "target's state before its last norm": before_the_targets_last_norm,
    "hidden state first": _hidden_first,
    "norms exchanged": _norms_exchanged,
    "no last norm": _no_last_norm,
    "the state goes on without the last norm": _state_goes_on_without_norm,
    "norms shifted twice": _shifted_twice,
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_turns_it_red(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    """And it changes no token of the text."""
    check_red(partial(case, "qwen-tied"), monkeypatch, mistake)


UNSHIFTED: dict[str, Callable[[str], bool]] = {
    "none": lambda name: False,
    "not those in front of fc": lambda name: not name.startswith("pre_fc"),
    "not the last": lambda name: name != "norm.weight",
    "not the layer's": lambda name: not name.startswith("layers"),
}


@pytest.mark.parametrize("shifted", UNSHIFTED.values(), ids=UNSHIFTED.keys())
def test_norms_left_as_they_are_stored_turn_it_red(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, shifted: Callable[[str], bool]
) -> None:
    def load() -> Case:
        with monkeypatch.context() as patch:
            patch.setattr(
                mtp_files, "centred_norms", lambda norms, raw: set(filter(shifted, norms))
            )
            return case("qwen-tied")

    check_red(load, monkeypatch, lambda patch, found: None)


def test_a_width_read_as_a_number_of_drafts(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_letter(partial(case, "qwen-tied"), monkeypatch)


def test_state_of_a_rejected_draft_turns_it_red(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's own state keeps a rejected token; its text goes wrong too."""
    plain = gated_delta.replayed

    def replayed(layer: Any, state: Any, block: Any, count: Any, *rest: Any) -> Any:
        if isinstance(count, int):
            return plain(layer, state, block, min(count + 1, block.inputs.shape[1]))
        return plain(layer, state, block, count, mx.ones_like(rest[0]), rest[1])

    with monkeypatch.context() as patch:
        patch.setattr(state_cache, "replayed", replayed)
        found = case("qwen-tied")
        drafter, _ = drafted(found, patch, 23)
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, 23)
