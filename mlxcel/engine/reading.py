"""The request being read in: the target's prefill and the drafter's own beside it."""

from __future__ import annotations

import mlx.core as mx

from mlxcel.config import Settings
from mlxcel.engine.drafters import Drafter, Preparation
from mlxcel.engine.sequence import RequestState
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.row_copy import Resume
from mlxcel.runtime.sampling import Choice, RowSampler

__all__ = ["Reading"]


class Reading:
    """A prompt on its way into a row of its own; one that was pushed back, with its output.

    Parameters
    ----------
    state : RequestState
        The request.
    model : LoadedModel
        The target.
    drafter : Drafter or None
        Prepared beside the target, if there is one.
    settings : Settings
        Chunk size and buffer steps.
    resume : Resume, optional
        What need not be read, and where a chunk has to end.
    """

    def __init__(
        self,
        state: RequestState,
        model: LoadedModel,
        drafter: Drafter | None,
        settings: Settings,
        resume: Resume | None = None,
    ) -> None:
        prompt, resume = state.context, resume or Resume()
        self.state = state
        self.prefill = Prefill(
            model.target,
            prompt,
            chunk=settings.prefill_chunk,
            slack=settings.max_width,
            length_step=settings.length_step,
            copied=resume.target,
            start=resume.length,
            branch=resume.branch,
        )
        self.sampler = RowSampler.for_prompt(
            model.target.vocab_size, state.params, state.request.prompt_ids
        )
        if state.token_ids:
            out = mx.array([state.token_ids], mx.uint32)
            self.sampler.record(out, mx.array([len(state.token_ids)], mx.int32))
        self.drafting: Preparation | None = None
        if drafter is not None:
            self.drafting = drafter.prepare(
                prompt, settings.prefill_chunk, state.may_draft, resume
            )

    @property
    def at_branch(self) -> bool:
        """Whether the last chunk ended where other prompts are known to part from this one."""
        return 0 < self.prefill.branch == self.prefill.done

    @property
    def complete(self) -> bool:
        """Whether target and drafter have read the whole prompt."""
        return self.prefill.complete and (self.drafting is None or self.drafting.complete)

    def advance(self) -> None:
        """Enqueue one chunk of each."""
        if not self.prefill.complete:
            self.prefill.advance()
        if self.drafting is not None and not self.drafting.complete:
            self.drafting.advance(self.prefill)

    def first(self) -> Choice:
        """Choose the first output token."""
        return self.prefill.first(self.sampler)
