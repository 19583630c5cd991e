"""Drafting with a model of its own caches: the chain of K-1 proposals, lazily.

The draft model's caches follow the target's lengths. Its first step feeds two tokens, the
last one in the target's caches again and the bonus token: after a round in which every
draft was accepted the draft model has never seen the last of them, and writing a position
again with the same token changes nothing, so all rows take the same path.

Rounds without drafts (classic steps) are not read one by one: their tokens wait on the device
and are fed before the next draft, else the cache would have holes. More than `WAITING` of them
are forgotten, the oldest first, and the draft model's own positions are counted without them:
rows that classic decode serves for good cost it nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxcel.models.target import Target
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.cache_cost import position_bytes
from mlxcel.runtime.caches import new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.row_copy import Resume, RowCopy

__all__ = ["WAITING", "DraftModel"]

CATCH_UP = 8
"""Waiting tokens that are read when rows join or leave; older ones are forgotten then."""

WAITING = 64
"""Tokens of classic steps that wait at most, per row."""


class DraftModel:
    """An independent model that proposes, row by row beside a `Batch`.

    Parameters
    ----------
    model : Target
        The draft model, with rewindable caches.
    slack, length_step : int
        As for the target's batch.
    """

    def __init__(self, model: Target, *, slack: int, length_step: int) -> None:
        self.model = model
        self.slack = slack + 1
        self.length_step = length_step
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.caches = new_caches(self.model, slack=self.slack, length_step=self.length_step)
        self._unread: list[mx.array] = []  # tokens of each row, oldest first, then the bonus
        self._unread_bound = 0
        self._unread_start = mx.zeros((0,), mx.int32)
        self._gaps: list[int] = []  # tokens of each row that the draft model has not read

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """Bytes of one position of a row, see `mlxcel.runtime.cache_cost.position_bytes`."""
        return position_bytes(self.model, slack=self.slack, length_step=self.length_step)

    def prefill(self, prompt: Sequence[int], chunk: int, resume: Resume | None = None) -> Prefill:
        """Begin to read a prompt, behind what is copied of the draft model's caches."""
        resume = resume or Resume()
        return Prefill(
            self.model, prompt, chunk=chunk, slack=self.slack, length_step=self.length_step,
            copied=resume.drafter, start=resume.length, branch=resume.branch,
        )  # fmt: skip

    def join(self, prefill: Prefill) -> None:
        """Add a row below the others."""
        self._catch_up()
        self.caches.append(prefill.caches)
        self._gaps.append(0)

    def copy_row(self, row: int, length: int, written: int) -> RowCopy | None:
        """Copy a row's first ``length`` tokens, less those that wait if they are many.

        See `RowCopy.of`.

        ``None`` where tokens have been forgotten or none has been read.
        """
        if len(self._unread) <= CATCH_UP:
            self._read()
        read = length - len(self._unread)
        if self._gaps[row] or read <= 0:
            return None
        assert isinstance(self.caches, SlotCache)
        return RowCopy.of(self.caches, row, read, written)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        if rows:
            self._catch_up()
            self.caches.gather(rows)
            self._gaps = [self._gaps[row] for row in rows]
        else:
            self.clear()

    def skip(self, batch: Batch, *, bound: int) -> None:
        """A round without drafts is about to be verified.

        Parameters
        ----------
        batch : Batch
            The target's rows, before the verify pass.
        bound : int
            As for `Batch.frame`.
        """
        if len(self._unread) == WAITING:
            self._unread.pop(0)
            self._gaps = [gap + 1 for gap in self._gaps]
        if not self._unread:
            self._unread, self._unread_start = [batch.previous], self._place(batch.lengths - 1)
        self._unread.append(batch.bonus)
        self._unread_bound = bound

    def _place(self, positions: mx.array) -> mx.array:
        """Positions of the target's text, ``(rows,)``, as places in the draft model's caches."""
        return positions - mx.array(self._gaps, mx.int32) if any(self._gaps) else positions

    def _catch_up(self) -> None:
        """Read the newest tokens that wait, so that rows can change; forget the older ones."""
        over = len(self._unread) - CATCH_UP
        if over > 0:
            del self._unread[:over]
            self._gaps = [gap + over for gap in self._gaps]
        self._read()

    def _read(self, leave: int = 0) -> None:
        """Feed what is unread by itself, but for the newest ``leave`` tokens."""
        while len(self._unread) > leave:
            fed = min(len(self._unread) - leave, self.slack)
            tokens = mx.stack(self._unread[:fed], axis=1)
            self.caches.frame = Frame(self._unread_start, fed, self._unread_bound)
            self.model.hidden(tokens, self.caches.layers)
            self._unread, self._unread_start = self._unread[fed:], self._unread_start + fed

    def draft(self, batch: Batch, width: int, *, bound: int, exact: int | None) -> mx.array:
        """Propose ``width - 1`` tokens for every row.

        Parameters
        ----------
        batch : Batch
            The target's rows, before the verify pass.
        width : int
            Block width, at least 2.
        bound, exact
            As for `Batch.frame`.

        Returns
        -------
        mx.array
            uint32 ``(rows, width - 1)``, not evaluated.
        """
        self._read(leave=self.slack - 1)
        before = self._unread or [batch.previous]
        tokens = mx.stack([*before, batch.bonus], axis=1)
        start = self._place(batch.lengths - len(before))
        self._unread = []
        gaps = mx.array(self._gaps, mx.int32)[:, None] if any(self._gaps) else 0
        block = batch.bonus[:, None]
        for step in range(width - 1):
            fed = int(tokens.shape[1])
            if exact is not None and batch.rows == 1:
                frame = Frame.exact(exact + step + 1 - fed - self._gaps[0], fed)
            else:
                frame = Frame(start, fed, bound)
            self.caches.frame = frame
            hidden = self.model.hidden(tokens, self.caches.layers)[:, -1:]
            logits = _as_wide_as(self.model.logits(hidden), batch.target.vocab_size)
            tokens = batch.sampler.propose(logits, block, frame.positions()[:, -1:] + 1 + gaps)
            block = mx.concatenate([block, tokens], axis=1)
            start = start + fed
        return block[:, 1:]


def _as_wide_as(logits: mx.array, vocab_size: int) -> mx.array:
    """Clip or pad logits: the output heads of a pair may differ in padding rows."""
    missing = vocab_size - int(logits.shape[-1])
    if missing <= 0:
        return logits[..., :vocab_size]
    lowest = mx.full((*logits.shape[:-1], missing), -mx.inf, dtype=logits.dtype)
    return mx.concatenate([logits, lowest], axis=-1)
