"""Drafting with a model of its own caches: the chain of K-1 proposals, lazily.

The draft model's caches follow the target's lengths. Its first step feeds two tokens, the
last one in the target's caches again and the bonus token: after a round in which every
draft was accepted the draft model has never seen the last of them, and writing a position
again with the same token changes nothing, so all rows take the same path.

Tokens of rounds without drafts (classic steps) wait, see `mlxcel.runtime.waiting`.
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
from mlxcel.runtime.waiting import Waiting

__all__ = ["DraftModel"]


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
        self.waiting = Waiting()  # tokens of classic steps, behind the one before them

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
        if self.waiting.little:
            self._read()
        self.waiting.forget(1)
        if self.waiting.count:
            self.waiting.take()  # the newest is in the cache, so the next draft feeds it anyway
        self.caches.append(prefill.caches)
        self.waiting.gaps.append(0)

    def copy_row(self, row: int, length: int, written: int) -> RowCopy | None:
        """Copy a row's first ``length`` tokens, less those that wait if they are many.

        See `RowCopy.of`.

        ``None`` where tokens have been forgotten or none has been read.
        """
        if self.waiting.little:
            self._read()
        read = length - self.waiting.count
        if self.waiting.gaps[row] or read <= 0:
            return None
        assert isinstance(self.caches, SlotCache)
        return RowCopy.of(self.caches, row, read, written)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        if rows:
            self.caches.gather(rows)
            self.waiting.keep(rows)
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
        if not self.waiting.count:
            self._wait(batch.previous, batch.lengths - 1, bound)
        self._wait(batch.bonus, batch.lengths, bound)

    def _wait(self, tokens: mx.array, positions: mx.array, bound: int) -> None:
        self.waiting.add((tokens[:, None],), positions, None, bound)

    def _read(self, leave: int = 0) -> None:
        """Feed what waits by itself, but for the newest ``leave`` tokens."""
        while self.waiting.count > leave:
            fed = min(self.waiting.count - leave, self.slack)
            bound = self.waiting.bound
            (tokens,), start = self.waiting.take(fed)
            self.caches.frame = Frame(start, fed, bound)
            self.model.hidden(tokens, self.caches.layers)

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
        before = self.waiting.take()[0][0] if self.waiting.count else batch.previous[:, None]
        tokens = mx.concatenate([before, batch.bonus[:, None]], axis=1)
        start, _ = self.waiting.place(batch.lengths - int(before.shape[1]))
        gaps = mx.array(self.waiting.gaps, mx.int32)[:, None] if any(self.waiting.gaps) else 0
        block = batch.bonus[:, None]
        for step in range(width - 1):
            fed = int(tokens.shape[1])
            if exact is not None and batch.rows == 1:
                frame = Frame.exact(exact + step + 1 - fed - self.waiting.gaps[0], fed)
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
