"""Rounds whose accepted counts are scripted row by row, and checked against fresh runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np

from mlxcel.engine.drafting import Draft, Preparation
from mlxcel.engine.plan import Plan
from mlxcel.runtime.batch import Batch, Check
from tests.support import tiny
from tests.support.cache_kinds import Nothing
from tests.support.fresh import Fresh, assert_close

CLASSIC = -1
Script = Callable[[int, int, int], int]
"""From number of the text, the row's own rounds so far and all rounds so far to the right drafts
of the next one, or `CLASSIC`."""


@dataclass(frozen=True)
class Pass:
    """A row's part of a round: where it began, how wide it was, and how many drafts were right."""

    text: int
    start: int
    width: int
    right: int


@dataclass
class _Row:
    text: int
    rounds: int = 0


@dataclass
class ScriptedRows:
    """Stands before a drafter: the drafts are replaced, and every pass is checked.

    Parameters
    ----------
    beside : Nothing
        The drafter with what it keeps, which goes on as with its own drafts.
    texts : sequence of Fresh
        What requests continue, told apart by their first two tokens.
    kept : sequence of object
        What ``beside.read`` makes of each.
    script : callable
        See `Script`.
    close : float
        See `CacheKind`.

    Attributes
    ----------
    rounds : list of list of Pass
        All rounds; of each row.
    """

    beside: Nothing
    texts: Sequence[Fresh]
    kept: Sequence[Any]
    script: Script
    close: float
    rounds: list[list[Pass]] = field(default_factory=list)
    kind = "scripted"

    def __post_init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beside.drafter, name)

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        begin = list(prompt[:2])
        at = next(at for at, text in enumerate(self.texts) if text.tokens[:2] == begin)
        self._rows[slot] = _Row(at)
        self.beside.drafter.join(slot, prompt, first, preparation)

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        self._batch = batch
        passes = [
            self._next(slot, int(start), width)
            for slot, start, width in zip(
                plan.slots, np.array(batch.lengths), plan.widths, strict=True
            )
        ]
        self.rounds.append(passes)
        widths = [each.width for each in passes]
        if max(widths) == 1:
            self.beside.drafter.draft(batch, replace(plan, widths=widths))
            return Draft(None, widths)
        if not self.beside.drafter.on_host:
            self.beside.drafter.draft(batch, plan)
        drafts = [self._drafts(each, max(widths)) for each in passes]
        return Draft(mx.array(drafts, mx.uint32), widths)

    def _next(self, slot: int, start: int, width: int) -> Pass:
        row = self._rows[slot]
        right = self.script(row.text, row.rounds, len(self.rounds))
        row.rounds += 1
        if right == CLASSIC:
            return Pass(row.text, start, 1, 0)
        return Pass(row.text, start, width, min(right, width - 1))

    def _drafts(self, each: Pass, width: int) -> list[int]:
        """True up to the right ones, then wrong; true again where a wider row's block goes on."""
        true = self.texts[each.text].tokens[each.start + 1 : each.start + width]
        wrong = range(each.right, each.width - 1)
        return [(t + 1) % tiny.VOCAB if at in wrong else t for at, t in enumerate(true)]

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        arrays: list[mx.array] = self.beside.drafter.absorb(check, plan)
        for row, each in enumerate(self.rounds[-1]):
            self._check(check, row, each)
        return arrays

    def _check(self, check: Check, row: int, each: Pass) -> None:
        text, end = self.texts[each.text], each.start + each.right + 1
        count = each.right + 1
        block, choices = np.array(check.packed)[:, row]
        assert int(check.accepted[row].item()) == each.right, each
        assert int(self._batch.lengths[row].item()) == end
        assert block[:count].tolist() == text.tokens[each.start : end], each
        assert choices[:count].tolist() == text.tokens[each.start + 1 : end + 1], each
        for name in ("hidden", "features"):
            found, wanted = np.array(getattr(check, name)), getattr(text, name)
            assert_close(
                found[row, :count], wanted[each.start : end], float(np.abs(wanted).max()),
                self.close, f"{name} from {each.start} to {end}",
            )  # fmt: skip
        text.check(self._batch.caches, row, end, self.close)
        drafted = block.size > 1
        self.beside.check(self.kept[each.text], row, end, drafted, self.close)
