"""The request being read in: the target's prefill and the drafter's own beside it."""

from __future__ import annotations

from mlxcel.config import Settings
from mlxcel.engine.drafters import Drafter, Preparation
from mlxcel.engine.sequence import RequestState
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.sampling import Choice, RowSampler

__all__ = ["Reading"]


class Reading:
    """A prompt on its way into a row of its own.

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
    """

    def __init__(
        self, state: RequestState, model: LoadedModel, drafter: Drafter | None, settings: Settings
    ) -> None:
        prompt = state.request.prompt_ids
        self.state = state
        self.prefill = Prefill(
            model.target,
            prompt,
            chunk=settings.prefill_chunk,
            slack=settings.max_width,
            length_step=settings.length_step,
        )
        self.sampler = RowSampler.for_prompt(model.target.vocab_size, state.params, prompt)
        self.drafting: Preparation | None = None
        if drafter is not None:
            run = state.decision.run or state.load is not None
            self.drafting = drafter.prepare(prompt, settings.prefill_chunk, run)

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
