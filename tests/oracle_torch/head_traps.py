"""Mistakes that heads with a cache of their own are prone to; each is built in at one place.

A mistake takes the patch and the case that it spoils. None may change the text: that is decided by
the target alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.runtime import mtp
from mlxcel.runtime.batch import Check
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.mtp import MtpChain, MtpPrefill
from tests.oracle_torch.heads import CHUNK, DRAFTS, Case, compare, drafted

Mistake = Callable[[pytest.MonkeyPatch, Case], None]
LENGTH = 23  # the prompt of all mistakes: longer than three chunks


def rejected_draft_stays(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The head's cache does not go back."""
    plain = MtpChain.absorb

    def absorb(self: MtpChain, check: Check, **frame: Any) -> None:
        plain(self, check, **frame)
        rejected = check.packed.shape[2] - 1 - int(check.accepted[0].item())
        self.waiting.gaps = [gap - rejected for gap in self.waiting.gaps]

    patch.setattr(MtpChain, "absorb", absorb)


def own_entries_stay(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Entries of accepted drafts remain as the chain made them of its own states."""
    plain = MtpChain.__init__

    def init(self: MtpChain, *args: Any, **options: Any) -> None:
        plain(self, *args, **options | {"refresh": False})

    patch.setattr(MtpChain, "__init__", init)


def one_row_early(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The number of accepted drafts taken for the number of rows kept, which is one more."""
    plain = MtpChain.absorb

    def absorb(self: MtpChain, check: Check, **frame: Any) -> None:
        plain(self, replace(check, accepted=mx.maximum(check.accepted - 1, 0)), **frame)

    patch.setattr(MtpChain, "absorb", absorb)


def last_row(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The state of the block's last draft, rejected or not."""
    plain = MtpChain.absorb

    def absorb(self: MtpChain, check: Check, **frame: Any) -> None:
        last = mx.full(check.accepted.shape, check.packed.shape[2] - 1, mx.int32)
        plain(self, replace(check, accepted=last), **frame)

    patch.setattr(MtpChain, "absorb", absorb)


def drafts_one_later(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Chained steps stand one position behind theirs, relative to all that is cached."""
    plain = mtp._frame

    def frame(offset: mx.array, width: int, bound: int, exact: int | None) -> Frame:
        if width > 1:
            return plain(offset, width, bound, exact)
        return plain(offset + 1, width, bound + 1, None if exact is None else exact + 1)

    patch.setattr(mtp, "_frame", frame)


def prompt_not_shifted(patch: pytest.MonkeyPatch, case: Case) -> None:
    """State i paired with token i."""
    _prompt_as(patch, lambda tokens: mx.roll(tokens, 1, axis=1))


def chunks_apart(patch: pytest.MonkeyPatch, case: Case) -> None:
    """A chunk's last state does not find the first token of the next chunk."""

    def blind(tokens: mx.array) -> mx.array:
        first = mx.arange(tokens.shape[1]) % CHUNK == 0
        return mx.where(first, mx.zeros_like(tokens), tokens)

    _prompt_as(patch, blind)


def _prompt_as(patch: pytest.MonkeyPatch, seen: Callable[[mx.array], mx.array]) -> None:
    plain = MtpPrefill.__init__

    def init(self: MtpPrefill, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        self._tokens = seen(self._tokens)

    patch.setattr(MtpPrefill, "__init__", init)


def before_the_targets_last_norm(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The target's states as its last layer puts them out."""
    case.model.target.tap((len(case.model.target.body.layers),))


CHAIN: dict[str, Mistake] = {
    "a rejected draft stays": rejected_draft_stays,
    "the chain's own entries stay": own_entries_stay,
    "state of the row before": one_row_early,
    "state of a rejected draft": last_row,
    "drafts one position later": drafts_one_later,
    "prompt not shifted": prompt_not_shifted,
    "chunks apart": chunks_apart,
}


def check_red(
    load: Callable[[], Case], monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    """Assert that the comparison fails with a mistake, whose text is right all the same.

    ``load`` makes the case: again for each mistake, within its patch.
    """
    with monkeypatch.context() as patch:
        found = load()
        mistake(patch, found)
        drafter, answer = drafted(found, patch, LENGTH)
    assert answer == found.greedy(LENGTH)
    assert len(drafter.seen) > 4
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, LENGTH)


def check_letter(load: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a width read as a number of drafts, or the other way round, is found.

    In the literature K counts drafts, here the block with its bonus token.
    """
    found = load()
    drafter, answer = drafted(found, monkeypatch, LENGTH, width=DRAFTS)
    assert answer == found.greedy(LENGTH)
    with pytest.raises(AssertionError):
        compare(drafter, found.cases, LENGTH)
