"""Reading a prompt, chunk by chunk, into caches of its own."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxcel.models.target import Target
from mlxcel.runtime.caches import new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.row_copy import RowCopy
from mlxcel.runtime.sampling import Choice, RowSampler

__all__ = ["Prefill"]


class Prefill:
    """A prompt on its way into the caches of one row.

    The chunks begin where the copied part ends, else at position 0, and have one size, whatever
    else runs, so that the same prompt always gives the same numbers.

    Parameters
    ----------
    target : Target
        The model.
    prompt : sequence of int
        Token ids, at least one.
    chunk : int
        Tokens per pass.
    slack, length_step : int
        As for the caches of the batch that the row will join.
    copied : RowCopy, optional
        Caches of the prompt's first tokens, which are then not read again.
    start : int
        How many tokens those are; less than the prompt has.
    branch : int
        A chunk ends here; 0 for nowhere.
    """

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        *,
        chunk: int,
        slack: int,
        length_step: int,
        copied: RowCopy | None = None,
        start: int = 0,
        branch: int = 0,
    ) -> None:
        self.target = target
        self.branch = branch
        self.caches = new_caches(target, slack=slack, length_step=length_step)
        self.done = self._stale = 0
        if copied is not None:
            assert isinstance(self.caches, SlotCache)
            copied.fill(self.caches, start)
            self.done = start
            self._stale = start + slack  # its rings may hold as much beyond `start`
        self.chunk = chunk
        self._prompt = mx.array(list(prompt), dtype=mx.uint32)
        self.length = len(prompt)
        self._hidden: mx.array | None = None
        self._taps: mx.array | None = None

    @property
    def hidden(self) -> mx.array:
        """Hidden states of the last chunk, ``(1, width, hidden)``."""
        if self._hidden is None:
            raise AssertionError("no chunk has been read yet")
        return self._hidden

    @property
    def features(self) -> mx.array:
        """What a head reads of the last chunk: what was tapped, else `hidden`."""
        return self.hidden if self._taps is None else self._taps

    @property
    def complete(self) -> bool:
        """Whether the whole prompt is in the caches."""
        return self.done == self.length

    def advance(self) -> None:
        """Enqueue the next chunk."""
        end = min(self.done + self.chunk, self.length)
        if self.done < self.branch < end:
            end = self.branch
        width = end - self.done
        self.caches.frame = Frame.exact(self.done, width)
        tokens = self._prompt[self.done : self.done + width][None]
        self._hidden = self.target.hidden(tokens, self.caches.layers)
        self._taps = self.target.tapped()
        self.done += width
        mx.async_eval([*self.caches.state, self._hidden])

    def copy(self) -> RowCopy:
        """Copy what has been read so far, see `RowCopy.of`."""
        assert isinstance(self.caches, SlotCache)
        return RowCopy.of(self.caches, 0, self.done, max(self.done, self._stale))

    def first(self, sampler: RowSampler) -> Choice:
        """Choose the first output token; its history is the prompt."""
        last = self.hidden[:, -1:]
        choice = sampler.choose(
            self.target.logits(last),
            self._prompt[-1:][None],
            mx.array([[self.length]], dtype=mx.int32),
        )
        sampler.record(choice.tokens, mx.ones((1,), mx.int32))
        return choice
