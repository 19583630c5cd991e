"""Runs of heads that keep a cache of their own, and the comparison with the oracle's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.target import Target
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from mlxcel.runtime.mtp import MtpChain
from tests.oracle_torch.scripted import scripted
from tests.support.running import one

PROMPTS = (1, 9, 23)
DRAFTS, TOKENS, CHUNK = 4, 18, 7
# Buffers are long enough for mistakes that give no places back.
SETTINGS = Settings(length_step=256, prefill_chunk=CHUNK, max_width=8)
CLOSE = 1e-3


@dataclass
class Case:
    """A target with its head, and the oracle's arrays."""

    model: LoadedModel
    head: Any
    cases: dict[str, Any]
    folder: Path

    def prompt(self, length: int) -> list[int]:
        return self.cases[f"prompt_{length}"].tolist()

    def greedy(self, length: int) -> tuple[int, ...]:
        return tuple(self.cases[f"greedy_{length}"].tolist())


def case_loader(cases: Path, load_head: Callable[[Path, Target], Any]) -> Callable[[str], Case]:
    """Loads a target by its name, with the head that ``load_head`` finds in its folder."""

    def get(name: str) -> Case:
        folder = cases / name
        model = load_checkpoint(folder / "target", cache_dir=folder)
        head = load_head(folder, model.target)
        return Case(model, head, dict(np.load(folder / "cases.npz")), folder)

    return get


class Compared(MtpDrafter):
    """Keeps drafts with their logits by length, then swaps in scripted ones."""

    def __init__(self, chain: MtpChain, text: Sequence[int]) -> None:
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
    found: Case, monkeypatch: pytest.MonkeyPatch, length: int, width: int = DRAFTS + 1
) -> tuple[Compared, tuple[int, ...]]:
    """Run a prompt with the head; the drafts it made, and the answer."""
    chain = MtpChain(found.head, slack=SETTINGS.max_width, length_step=SETTINGS.length_step)
    drafter = Compared(chain, [*found.prompt(length), *found.greedy(length)])
    kind = type(found.head)
    plain = kind.logits

    def recorded(self: Any, hidden: mx.array) -> mx.array:
        drafter.logits.append(plain(self, hidden))
        return drafter.logits[-1]

    with monkeypatch.context() as patch:
        patch.setattr(kind, "logits", recorded)
        engine = Engine(found.model, drafter, SETTINGS)
        answer = one(engine, found.prompt(length), width, max_tokens=TOKENS, ignore_eos=True)
    return drafter, answer.token_ids


def compare(drafter: Compared, cases: dict[str, Any], length: int) -> int:
    """Assert that all drafts and logits are the oracle's; return how many rounds were."""
    rounds = 0
    for at, (tokens, made) in drafter.seen.items():
        after = at - length
        if f"drafts_{length}_{after}" not in cases:
            continue  # the round after the end, in flight when it came
        check_count(tokens, after)
        assert tokens == cases[f"drafts_{length}_{after}"][: len(tokens)].tolist(), at
        wanted = cases[f"draft_logits_{length}_{after}"][: len(tokens)]
        np.testing.assert_allclose(np.array(made), wanted, atol=CLOSE, rtol=0)
        rounds += 1
    return rounds


def check_count(tokens: Sequence[int], after: int) -> None:
    """Assert that a block of width `DRAFTS` + 1 has that many drafts, but where the budget ends.

    ``after`` tokens of the answer are in the caches, one more is chosen, and one more than the
    accepted drafts will be.
    """
    assert min(DRAFTS, TOKENS - after - 2) <= len(tokens) <= DRAFTS, (after, tokens)


def check_case(found: Case, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Assert that logits, four chained steps a round, and the text with and without are right."""
    logits = np.array(found.model.target.model(mx.array([found.prompt(length)], mx.uint32))[0])
    np.testing.assert_allclose(logits, found.cases[f"logits_{length}"], atol=CLOSE, rtol=0)
    drafter, answer = drafted(found, monkeypatch, length)
    assert compare(drafter, found.cases, length) > 4
    assert answer == found.greedy(length)
    engine = Engine(found.model, None, SETTINGS)
    classic = one(engine, found.prompt(length), max_tokens=TOKENS, ignore_eos=True)
    assert classic.token_ids == answer
