"""The drafter that a Gemma 4 assistant is to the engine."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxcel.engine.drafters import DeviceDrafter
from mlxcel.engine.drafting import Draft, Preparation
from mlxcel.engine.plan import Plan
from mlxcel.runtime.assistant import AssistantChain, AssistantPrefill
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.row_copy import Resume

__all__ = ["AssistantDrafter"]


class AssistantDrafter(DeviceDrafter):
    """An assistant that reads the target's own caches.

    Parameters
    ----------
    chain : AssistantChain
        The assistant and the rows' hidden states.
    fingerprint : str
        Of its weights, their form and its settings.
    """

    kind = "assistant"
    keeps_rows = False

    def __init__(self, chain: AssistantChain, *, fingerprint: str = "assistant") -> None:
        self._chain = chain
        self.fingerprint = fingerprint

    @property
    def nbytes(self) -> int:
        """Bytes of the rows' hidden states."""
        return self._chain.nbytes

    def prepare(
        self, prompt: Sequence[int], chunk: int, speculate: bool, resume: Resume | None = None
    ) -> Preparation:
        """See `Drafter`; the target's own pass over the prompt is all that is needed."""
        return AssistantPrefill()

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""
        assert isinstance(preparation, AssistantPrefill)
        self._chain.join(preparation)

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`."""
        self._chain.keep(rows)

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """See `Drafter`; there are no caches."""
        return []

    def copy_row(self, slot: int, row: int, length: int, written: int) -> None:
        """See `Drafter`; nothing is kept by row that the target's caches do not have."""

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        """See `Drafter`."""
        if plan.width == 1:
            return Draft(None, plan.widths)
        bound = plan.bound - plan.width
        tokens = self._chain.draft(batch, plan.width, bound=bound, exact=plan.exact)
        return Draft(self.alter(tokens, batch), plan.widths)

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        """See `Drafter`."""
        return [self._chain.absorb(check)]
