"""Running a Gemma 4 assistant beside a batch: the target's caches, read and never written.

An assistant needs two things of a row: the target's keys and values of one layer of each kind,
which lie in the batch's slot caches, and the target's hidden state of the newest token in them.
Neither is a state of its own: after a rejection the lengths say what counts, and the hidden
state is taken anew from the verify pass. So classic steps leave nothing behind to catch up with,
rows join with the last hidden state of their prompt, and a prompt that begins like another one's
needs no copy of anything but the target's caches.

Peers disagree about the position of the queries, which is the same for all steps of a round;
see ``docs/decisions/0018-assistants.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant, Source
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.caches import Caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.kv_view import view
from mlxcel.runtime.prefill import Prefill

__all__ = ["AssistantChain", "AssistantPrefill", "Position"]

Position = Literal["pending", "last"]


class AssistantPrefill:
    """Waits for the hidden state of a prompt's last token."""

    def __init__(self) -> None:
        self.last: mx.array | None = None

    @property
    def complete(self) -> bool:
        """Whether the target has read the whole prompt."""
        return self.last is not None

    def advance(self, target: Prefill) -> None:
        """Take the last hidden state, once it is there."""
        if target.complete:
            self.last = target.hidden[:, -1:]

    def copy(self) -> None:
        """Nothing is kept by row that the target's caches do not have."""


class AssistantChain:
    """An assistant with the hidden state that each row's next draft begins with.

    Parameters
    ----------
    assistant : Gemma4Assistant
        Of the batch's target.
    position : {"pending", "last"}
        Position of the queries of a round: that of the pending token (the bonus), or of the
        newest token in the caches, one less.
    window : int, optional
        Newest tokens that sliding layers see; the window of the checkpoint by default.
    """

    def __init__(
        self,
        assistant: Gemma4Assistant,
        *,
        position: Position = "pending",
        window: int | None = None,
    ) -> None:
        self.assistant = assistant
        self.position = position
        self.window = window or assistant.window
        self.state: mx.array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states."""
        return 0 if self.state is None else int(self.state.nbytes)

    def join(self, prefill: AssistantPrefill) -> None:
        """Add a row below the others."""
        if prefill.last is None:
            raise AssertionError("the prompt has not been read")
        last = prefill.last
        self.state = last if self.state is None else mx.concatenate([self.state, last])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        if not rows or self.state is None:
            self.state = None
            return
        self.state = self.state[mx.array(list(rows), dtype=mx.int32)]

    def sources(self, caches: Caches, last: Frame) -> dict[str, Source]:
        """What the assistant's layers see of the target's caches.

        Parameters
        ----------
        caches : Caches
            The target's slot caches.
        last : Frame
            One token per row: the newest that counts.
        """
        assert isinstance(caches, SlotCache)
        return {
            kind: Source(*view(caches.layers[at], last, self.window))
            for kind, at in self.assistant.sources
        }

    def draft(self, batch: Batch, width: int, *, bound: int, exact: int | None) -> mx.array:
        """Propose ``width - 1`` tokens for every row.

        Parameters
        ----------
        batch : Batch
            The target's rows, before the verify pass.
        width : int
            Block width, at least 2.
        bound : int
            Upper bound of the rows' lengths.
        exact : int or None
            Length of the only row, if the host knows it.

        Returns
        -------
        mx.array
            uint32 ``(rows, width - 1)``, not evaluated.
        """
        if self.state is None:
            raise AssertionError("no row has joined")
        position: int | mx.array
        if exact is not None and batch.rows == 1:
            last, position = Frame.exact(exact - 1, 1), exact
        else:
            last, position = Frame(batch.lengths - 1, 1, bound), batch.lengths
        if self.position == "last":
            position = last.offset
        sources = self.sources(batch.caches, last)
        state, block = self.state, batch.bonus[:, None]
        for step in range(width - 1):
            hidden = self.assistant.step(block[:, -1:], state, sources, position)
            logits, ids = self.assistant.logits(hidden)
            places = batch.lengths[:, None] + (step + 1)
            token = batch.sampler.propose(logits, block, places, ids)
            block = mx.concatenate([block, token], axis=1)
            if step + 2 < width:
                state = self.assistant.project(hidden)
        return block[:, 1:]

    def absorb(self, check: Check) -> mx.array:
        """Take the hidden state of each row's newest token from a verify pass.

        Returns
        -------
        mx.array
            ``(rows, 1, hidden)``, to be evaluated with the pass.
        """
        hidden = check.hidden
        if hidden.shape[1] > 1:
            hidden = mx.take_along_axis(hidden, check.accepted[:, None, None], axis=1)
        self.state = hidden
        return hidden
