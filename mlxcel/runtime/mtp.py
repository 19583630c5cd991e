"""Running a head beside a batch: one cache, the true pairs, and the chain of drafts.

The head reads pairs of the target's features (its final hidden state, or hidden states of some of
its layers, see `ChainHead`) at position i and the token at i + 1. A
verify pass makes hidden states for the whole block, and its choices are the tokens after
them, so the true pairs of every row are the block's first accepted + 1; the rest lies
beyond the row's new length and is overwritten later. All rows therefore take one pass.

Pairs of rounds without drafts (classic steps) wait on the device, see `mlxcel.runtime.waiting`: a
classic step then costs what it costs without a drafter. A row that drafts again after a long time
has read the beginning and the newest part of its text.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxcel.models.drafters.chain_head import ChainHead
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.cache_cost import layer_bytes
from mlxcel.runtime.caches import slot_cache
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.row_copy import Resume, RowCopy
from mlxcel.runtime.waiting import Waiting

__all__ = ["MtpChain", "MtpPrefill"]


class MtpPrefill:
    """The head's own pass over a prompt, chunk by chunk behind the target's."""

    def __init__(
        self,
        chain: MtpChain,
        caches: SlotCache,
        prompt: Sequence[int],
        speculate: bool,
        pairs: int = 0,
    ) -> None:
        self.caches = caches
        self.pairs = pairs  # in the caches
        self.speculate = speculate
        self.length = len(prompt)
        self.last: mx.array | None = None  # features of the prompt's last token
        self._chain = chain
        self._tokens = mx.array(list(prompt), dtype=mx.uint32)[None]

    @property
    def complete(self) -> bool:
        """Whether the whole prompt has been read."""
        return self.last is not None

    def advance(self, target: Prefill) -> None:
        """Take in the target's last chunk; its last pair waits for the token after it."""
        features = target.features
        start = target.done - features.shape[1]
        pairs = min(target.done, self.length - 1) - start
        if self.speculate and pairs > 0:
            tokens = self._tokens[:, start + 1 : start + 1 + pairs]
            hidden = self._chain.head.reduce(features[:, :pairs])
            self._chain.read(hidden, tokens, Frame.exact(start, pairs), self.caches)
            mx.async_eval(self.caches.state)
            self.pairs = start + pairs
        if target.complete:
            self.last = features[:, -1:]

    def copy(self) -> RowCopy | None:
        """Copy the pairs that have been read, if the row speculates."""
        if not self.speculate:
            return None
        return RowCopy.of(self.caches, 0, self.pairs, self.pairs)


class MtpChain:
    """A head with a slot cache, and per row the state that the next draft comes from.

    Parameters
    ----------
    head : ChainHead
        The head of the target.
    slack, length_step : int
        As for the target's batch.
    refresh : bool
        Whether the entries of accepted drafts are computed again from the target's hidden
        states (as EAGLE and vLLM do) or kept as the chain made them; see
        ``docs/decisions`` for what was measured.
    """

    def __init__(
        self, head: ChainHead, *, slack: int, length_step: int, refresh: bool = True
    ) -> None:
        self.head = head
        self.refresh = refresh
        self._slack, self._length_step = slack, length_step
        self.clear()

    def _new_caches(self) -> SlotCache:
        return slot_cache([None], slack=self._slack, length_step=self._length_step)

    def clear(self) -> None:
        """Drop all rows."""
        self.caches = self._new_caches()
        self.state: mx.array | None = None
        self.waiting = Waiting()  # features and tokens of classic steps

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """Bytes of one position of a row, see `mlxcel.runtime.cache_cost.position_bytes`."""
        caches = self._new_caches()
        self.read(self.head.blank(), mx.zeros((1, 1), mx.uint32), Frame.exact(0, 1), caches)
        return layer_bytes(caches)

    def prefill(
        self, prompt: Sequence[int], speculate: bool, resume: Resume | None = None
    ) -> MtpPrefill:
        """Begin with a prompt.

        Parameters
        ----------
        prompt : sequence of int
            Token ids.
        speculate : bool
            Without it the row only keeps its place.
        resume : Resume, optional
            Where the target's chunks begin, and the head's pairs before that.
        """
        caches, pairs = self._new_caches(), 0
        if speculate and resume is not None and resume.drafter is not None:
            pairs = resume.length
            resume.drafter.fill(caches, pairs)
        return MtpPrefill(self, caches, prompt, speculate, pairs)

    def copy_row(self, row: int, length: int) -> RowCopy | None:
        """Copy the pairs of a row's first ``length`` tokens, less those that wait if they are many.

        ``None`` where pairs have been forgotten or none has been read.
        """
        if self.waiting.little:
            self._read_waiting()
        read = length - self.waiting.count
        if self.waiting.gaps[row] or read <= 0:
            return None
        return RowCopy.of(self.caches, row, read, read)

    def join(self, prefill: MtpPrefill, first: int) -> None:
        """Add a row below the others: the pair of its last prompt token and first output."""
        if prefill.last is None:
            raise AssertionError("the prompt has not been read")
        if self.waiting.little:
            self._read_waiting()
        place = prefill.length - 1 if prefill.speculate else 0
        token = mx.array([[first]], dtype=mx.uint32)
        hidden = self.head.reduce(prefill.last)
        state = self.read(hidden, token, Frame.exact(place, 1), prefill.caches)
        self.caches.append(prefill.caches)
        if self.waiting.count:
            # It waits with the others' newest; to read it again changes nothing.
            self.waiting.join((prefill.last, token), place, place + 1)
            self.state = None
        else:
            self.state = state if self.state is None else mx.concatenate([self.state, state])
        self.waiting.gaps.append(0)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        if not rows or not self.waiting.gaps:
            self.clear()
            return
        self.caches.gather(rows)
        self.waiting.keep(rows)
        if self.state is not None:
            self.state = self.state[mx.array(list(rows), dtype=mx.int32)]

    def read(
        self, hidden: mx.array, tokens: mx.array, frame: Frame, caches: SlotCache | None = None
    ) -> mx.array:
        """One pass of the head over pairs; the caches take them in.

        Parameters
        ----------
        hidden : mx.array
            ``(rows, width, hidden)``, reduced features of the target or states of the head.
        tokens : mx.array
            uint32 ``(rows, width)``, the token after each hidden state.
        frame : Frame
            Positions of the hidden states.
        caches : SlotCache, optional
            Another row's caches than those of the batch.

        Returns
        -------
        mx.array
            ``(rows, width, hidden)``: hidden states of the next pairs.
        """
        caches = caches or self.caches
        caches.frame = frame
        layer = caches.layers[0]
        return self.head.forward(
            self.head.fuse(hidden, tokens), layer.make_mask(frame.width), layer
        )

    def draft(self, batch: Batch, width: int, *, bound: int, exact: int | None) -> mx.array:
        """Propose ``width - 1`` tokens for every row; see `DraftModel.draft`."""
        self._read_waiting()
        if self.state is None:
            raise AssertionError("no row has joined")
        state, block = self.state, batch.bonus[:, None]
        begin, exact = self.waiting.place(batch.lengths, exact)
        for step in range(width - 1):
            if step:
                start = None if exact is None else exact + step - 1
                frame = _frame(begin + (step - 1), 1, bound, start)
                state = self.read(state, block[:, -1:], frame)
            positions = batch.lengths[:, None] + (step + 1)
            tokens = batch.sampler.propose(
                self.head.logits(state), block, positions, self.head.draft_ids
            )
            block = mx.concatenate([block, tokens], axis=1)
        return block[:, 1:]

    def absorb(self, check: Check, *, bound: int, exact: int | None) -> None:
        """Take in the true pairs of a verify pass; keep each row's newest state.

        Parameters
        ----------
        check : Check
            The pass.
        bound, exact
            As for the pass.
        """
        features, tokens = check.features, check.choice.tokens
        if features.shape[1] == 1:
            self.waiting.add((features, tokens), check.start, exact, bound)
            return
        self._read_waiting()
        index = check.accepted[:, None]
        start, exact = self.waiting.place(check.start, exact)
        if not self.refresh and features.shape[1] > 2:
            # The chain has made all entries but the last two: the newest pair, and before
            # it the last draft's if every draft was accepted.
            base = mx.maximum(index - 1, 0)
            at = base + mx.arange(2, dtype=mx.int32)[None]
            features = mx.take_along_axis(features, at[..., None], axis=1)
            tokens = mx.take_along_axis(tokens, at, axis=1)
            start, index, exact = start + base[:, 0], index - base, None
        frame = _frame(start, int(features.shape[1]), bound, exact)
        states = self.read(self.head.reduce(features), tokens, frame)
        self.state = mx.take_along_axis(states, index[..., None], axis=1)

    def _read_waiting(self) -> None:
        """Take in the pairs of the classic steps since the last draft: one token per row each."""
        waiting = self.waiting
        if not waiting.count:
            return
        width, bound, exact = waiting.count, waiting.bound, waiting.exact
        (features, tokens), start = waiting.take()
        frame = _frame(start, width, bound, exact)
        self.state = self.read(self.head.reduce(features), tokens, frame)[:, -1:]

    def pending(self) -> list[mx.array]:
        """Arrays to be evaluated so that nothing stays a graph."""
        state = [] if self.state is None else [self.state]
        return [*self.waiting.newest, *self.caches.state, *state]


def _frame(offset: mx.array, width: int, bound: int, exact: int | None) -> Frame:
    return Frame(offset, width, bound) if exact is None else Frame.exact(exact, width)
