"""The drafters that come with the engine; what a drafter is, says `mlxcel.engine.drafting`."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxcel._fast import NgramIndex
from mlxcel.engine.drafting import Draft, Drafter, Preparation, Tokens
from mlxcel.engine.plan import Plan
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.draft import DraftModel
from mlxcel.runtime.mtp import MtpChain, MtpPrefill
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.row_copy import Resume, RowCopy

__all__ = [
    "DeviceDrafter",
    "Draft",
    "Drafter",
    "HostDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "MtpDrafter",
    "Preparation",
    "Tokens",
]

class _Nothing:
    complete = True

    def advance(self, target: Prefill) -> None:
        """There is nothing to do."""

    def copy(self) -> None:
        """Nothing is kept by row."""


class HostDrafter:
    """Base of drafters that propose from the tokens seen so far, on the host."""

    kind = "host"
    on_host = True
    keeps_rows = False
    sequential = True
    nbytes = 0
    fingerprint = "host"
    weights = ""

    def prepare(
        self, prompt: Sequence[int], chunk: int, speculate: bool, resume: Resume | None = None
    ) -> Preparation:
        """See `Drafter`."""
        return _Nothing()

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`; nothing here is kept by row."""

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        """See `Drafter`; nothing here is on the device."""
        return []

    def observe(self, slots: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        """See `Drafter`."""

    def leave(self, slot: int) -> None:
        """See `Drafter`."""

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """See `Drafter`."""
        return []

    def copy_row(self, slot: int, row: int, length: int, written: int) -> None:
        """See `Drafter`; nothing here is kept by row."""

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        """See `Drafter`."""
        if plan.width == 1:
            return Draft(None, plan.widths)
        out = np.zeros((len(plan.slots), plan.width - 1), dtype=np.uint32)
        found = self.propose(plan.slots, [width - 1 for width in plan.widths], out)
        widths = [count + 1 for count in found]
        most = max(widths)
        return Draft(mx.array(out[:, : most - 1]) if most > 1 else None, widths)

    def propose(self, slots: Sequence[int], want: Sequence[int], out: Tokens) -> list[int]:
        """Write up to ``want[r]`` proposals into ``out[r]``; return how many for each row."""
        raise NotImplementedError


class LookupDrafter(HostDrafter):
    """Prompt lookup: copies what followed the last n tokens where they occurred before.

    Parameters
    ----------
    slots : int
        Sequences it can serve at once.
    min_n, max_n : int
        Shortest and longest match in tokens; the longest and most recent one wins.
    """

    kind = "lookup"

    def __init__(self, slots: int, *, min_n: int = 2, max_n: int = 4) -> None:
        self._index = NgramIndex(slots, min_n, max_n)
        self.fingerprint = f"lookup {min_n}-{max_n}"

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of the index."""
        return int(self._index.nbytes)

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""
        self._index.reset(slot)
        self._index.extend(slot, np.array([*prompt, first], dtype=np.uint32))

    def observe(self, slots: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        """See `Drafter`."""
        self._index.extend_round(
            np.array(slots, dtype=np.int32),
            np.array(counts, dtype=np.int32),
            np.ascontiguousarray(tokens),
        )

    def leave(self, slot: int) -> None:
        """See `Drafter`."""
        self._index.reset(slot)

    def propose(self, slots: Sequence[int], want: Sequence[int], out: Tokens) -> list[int]:
        """See `HostDrafter`."""
        counts = np.zeros(len(slots), dtype=np.int32)
        self._index.propose(
            np.array(slots, dtype=np.int32), np.array(want, dtype=np.int32), out, counts
        )
        return [int(count) for count in counts]


class DeviceDrafter:
    """Base of drafters that live on the device, row by row beside the batch."""

    on_host = False
    keeps_rows = True
    sequential = True
    fingerprint = "device"
    weights = ""

    def observe(self, slots: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        """See `Drafter`; lengths live on the device."""

    def leave(self, slot: int) -> None:
        """See `Drafter`; the row goes with the next `keep`."""

    def alter(self, tokens: mx.array, batch: Batch) -> mx.array:
        """Change proposals before they are verified; the identity here."""
        return tokens


class ModelDrafter(DeviceDrafter):
    """An independent draft model.

    Parameters
    ----------
    model : DraftModel
        The model with caches of its own.
    kind : str
        Name shown in statistics.
    fingerprint : str
        Of its checkpoint.
    """

    def __init__(
        self, model: DraftModel, kind: str = "draft", *, fingerprint: str = "draft"
    ) -> None:
        self.kind = kind
        self.fingerprint = fingerprint
        self._model = model
        self._speculating: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of the draft model's caches."""
        return self._model.caches.nbytes

    def prepare(
        self, prompt: Sequence[int], chunk: int, speculate: bool, resume: Resume | None = None
    ) -> Preparation:
        """See `Drafter`; a row that only keeps its place reads one token."""
        if not speculate:
            return _OwnPrefill(self._model.prefill(prompt[-1:], chunk), speculate)
        return _OwnPrefill(self._model.prefill(prompt, chunk, resume), speculate)

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""
        assert isinstance(preparation, _OwnPrefill)
        self._model.join(preparation.prefill)
        if preparation.speculate:
            self._speculating.add(slot)

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`."""
        self._model.keep(rows)

    def leave(self, slot: int) -> None:
        """See `Drafter`."""
        self._speculating.discard(slot)

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """See `Drafter`."""
        return self._model.position_bytes()

    def copy_row(self, slot: int, row: int, length: int, written: int) -> RowCopy | None:
        """See `Drafter`; the model may not have seen the last token yet."""
        if slot not in self._speculating:
            return None
        return self._model.copy_row(row, length - 1, written)

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        """See `Drafter`."""
        if plan.width == 1:
            if self._speculating.intersection(plan.slots):
                self._model.skip(batch, bound=plan.bound)
            return Draft(None, plan.widths)
        tokens = self._model.draft(batch, plan.width, bound=plan.bound, exact=plan.exact)
        return Draft(self.alter(tokens, batch), plan.widths)

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        """See `Drafter`; the caches were written while drafting."""
        return self._model.caches.state


class _OwnPrefill:
    """A draft model reads the prompt by itself."""

    def __init__(self, prefill: Prefill, speculate: bool) -> None:
        self.prefill, self.speculate = prefill, speculate

    @property
    def complete(self) -> bool:
        return self.prefill.complete

    def advance(self, target: Prefill) -> None:
        self.prefill.advance()

    def copy(self) -> RowCopy | None:
        return self.prefill.copy() if self.speculate else None


class MtpDrafter(DeviceDrafter):
    """A head that reads the target's hidden states: multi-token-prediction or EAGLE.

    Parameters
    ----------
    chain : MtpChain
        The head with a cache of its own.
    kind : str
        Name shown in statistics.
    fingerprint : str
        Of its weights.
    """

    def __init__(
        self, chain: MtpChain, kind: str = "mtp", *, fingerprint: str = "mtp"
    ) -> None:
        self.kind = kind
        self._chain = chain
        self.fingerprint = fingerprint
        self._speculating: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of the head's cache."""
        return self._chain.caches.nbytes

    def prepare(
        self, prompt: Sequence[int], chunk: int, speculate: bool, resume: Resume | None = None
    ) -> Preparation:
        """See `Drafter`."""
        return self._chain.prefill(prompt, speculate, resume)

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""
        assert isinstance(preparation, MtpPrefill)
        self._chain.join(preparation, first)
        if preparation.speculate:
            self._speculating.add(slot)

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`."""
        self._chain.keep(rows)

    def leave(self, slot: int) -> None:
        """See `Drafter`."""
        self._speculating.discard(slot)

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """See `Drafter`."""
        return self._chain.position_bytes()

    def copy_row(self, slot: int, row: int, length: int, written: int) -> RowCopy | None:
        """See `Drafter`."""
        return self._chain.copy_row(row, length) if slot in self._speculating else None

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        """See `Drafter`."""
        if plan.width == 1:
            return Draft(None, plan.widths)
        tokens = self._chain.draft(batch, plan.width, bound=plan.bound, exact=plan.exact)
        return Draft(self.alter(tokens, batch), plan.widths)

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        """See `Drafter`; while no row speculates there is nothing to keep up with."""
        if not self._speculating.intersection(plan.slots):
            return []
        self._chain.absorb(check, bound=plan.bound, exact=plan.exact)
        return self._chain.pending()
