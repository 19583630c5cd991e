"""Prompts that begin like another request's: read from where they differ.

Rows of running requests serve as well as copies of those that have ended; see
``docs/decisions/0011-prefix-reuse.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mlxcel.config import Settings
from mlxcel.decide.prefix_index import Prefix, Want, pack
from mlxcel.engine.prefix_store import Kept, PrefixStore
from mlxcel.engine.reading import Reading
from mlxcel.engine.rows import Rows
from mlxcel.engine.scheduler import Scheduler
from mlxcel.engine.sequence import RequestState
from mlxcel.models.target import CacheLayout
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.row_copy import Resume, RowCopy

__all__ = ["Prefixes"]

log = logging.getLogger(__name__)


class Prefixes:
    """Finds what a prompt can resume from, and keeps what requests leave behind.

    Parameters
    ----------
    settings : Settings
        Budget, chunk size and numerics.
    scheduler : Scheduler
        Knows the running requests.
    rows : Rows
        Their caches.
    layout : CacheLayout
        Of the target; nothing is kept of caches that cannot be cut.
    """

    def __init__(
        self, settings: Settings, scheduler: Scheduler, rows: Rows, *, layout: CacheLayout
    ) -> None:
        budget = 0 if layout.uncut else settings.prefix_bytes
        if layout.uncut and settings.prefix_bytes:
            log.info("no prompt resumes from another's prefix: %s", layout.uncut)
        self.store = PrefixStore(budget)
        self._on = budget > 0
        self._step = settings.prefill_chunk
        # Bitwise that of a cold run is only what the same chunks have made.
        self._chunk = self._step if settings.numerics == "invariant" else 0
        self._scheduler = scheduler
        self._rows = rows
        self._parting: dict[int, Kept] = {}  # by slot

    @property
    def nbytes(self) -> int:
        """Bytes of everything kept."""
        return self.store.nbytes

    def clear(self) -> None:
        """Give everything back."""
        self.store.clear()
        self._parting.clear()

    def find(self, state: RequestState) -> Resume | None:
        """What a request that is about to start need not read; counted in its usage."""
        if not self._on:
            return None
        owner = self._owner() if state.may_draft else ""
        want = Want(pack(state.context), owner, self._chunk)
        key, count = self.store.best(want) or (None, 0)
        slot, shared = self._best_row(want)
        kept = None if key is None else self.store.take(key)
        if slot is not None and shared > count:
            row = self._row_for(slot, shared)
            served = row.prefix.serves(want)
            if served > count:
                row.evaluate()
                kept, count = row, served
        state.resumed = count
        if not state.token_ids:  # else it was pushed back, and reads its prompt again
            state.cached_tokens = count
        self.store.count(count)
        # What a ring has forgotten is kept this time, where the two prompts part.
        shared = max(shared, self.store.index.most_shared(want))
        branch = shared if shared > count else 0
        return Resume(branch=branch) if kept is None else kept.resume(count, want, branch)

    def part(self, slots: Sequence[int]) -> None:
        """Only the rows of these slots stay; those that go have rounds that are not read yet.

        A row leaves as soon as its last round is in flight; what that gave is known, and the
        row's prefix kept or not, when the round is read.
        """
        for slot in set(self._rows.slots).difference(slots) if self._on else ():
            state = self._scheduler.running.get(slot)
            if state is not None:
                longest = self._scheduler.table.upper_length(slot)
                self._parting[slot] = self._copied(state, longest)

    def keep_row(self, state: RequestState) -> None:
        """A running request is about to end: keep what is settled of its row."""
        length, kept = self._cached(state), self._parting.pop(state.slot, None)
        if kept is not None:
            over = kept.target.length - length
            own = kept.drafter and kept.drafter.cut(kept.drafter.length - over)
            target, whole = kept.target.cut(length), min(self._whole(state), length)
            self.store.put(Kept.of(_tokens(state), whole, target, own, self._owner()))
        elif self._on and state.slot in self._rows.slots:
            self.store.put(self._copied(state, length))

    def keep_reading(self, reading: Reading) -> None:
        """A request ends with its prompt, or in it, or others branch off here: keep that."""
        if not self._on or not reading.prefill.done:
            return
        state, done = reading.state, reading.prefill.done
        drafting = None if reading.drafting is None else reading.drafting.copy()
        tokens = pack([*state.request.prompt_ids, *state.token_ids])
        whole = done // self._step * self._step
        self.store.put(Kept.of(tokens, whole, reading.prefill.copy(), drafting, self._owner()))

    def _owner(self) -> str:
        """Whose caches beside the target's are meant; empty for a drafter that has none."""
        drafter = self._rows.drafter
        if drafter is None or not drafter.keeps_rows:
            return ""
        return f"{drafter.kind} {drafter.fingerprint}"

    def _best_row(self, want: Want) -> tuple[int | None, int]:
        """Slot of the running row that shares most, and how many tokens."""
        counts = {
            slot: self._prefix(state).shares(want)
            for slot, state in self._scheduler.running.items()
            if slot in self._rows.slots and (not want.owner or state.may_draft)
        }
        slot = max(counts, key=lambda slot: counts[slot], default=None)
        return slot, 0 if slot is None else counts[slot]

    def _row_for(self, slot: int, count: int) -> Kept:
        """Copy as much of a running row as is needed to resume from it."""
        state = self._scheduler.running[slot]
        # One token more: a drafter may have seen one less than the target.
        return self._copied(state, min(count + 1, self._cached(state)))

    def _prefix(self, state: RequestState) -> Prefix:
        """What a running row has, whatever its rings have lost."""
        cached = self._cached(state)
        return Prefix(_tokens(state), cached, 0, self._whole(state), self._owner(), cached)

    def _whole(self, state: RequestState) -> int:
        return len(state.request.prompt_ids) // self._step * self._step

    def _cached(self, state: RequestState) -> int:
        """Tokens whose keys and values are final: all but the last, which was never fed."""
        return len(state.request.prompt_ids) + len(state.token_ids) - 1

    def _copied(self, state: RequestState, length: int) -> Kept:
        """Copies of a running row's first tokens, still lazy."""
        caches, row = self._rows.batch.caches, self._rows.slots.index(state.slot)
        assert isinstance(caches, SlotCache)
        written = self._written(state)
        target = RowCopy.of(caches, row, length, written)
        drafter = self._rows.drafter
        own = None if drafter is None else drafter.copy_row(state.slot, row, length, written)
        whole = min(self._whole(state), length)
        return Kept.of(_tokens(state), whole, target, own, self._owner())

    def _written(self, state: RequestState) -> int:
        """Upper bound of the positions written so far, by rounds in flight too."""
        table, batch = self._scheduler.table, self._rows.batch
        begun = table.stats(state.slot)["length"]
        if table.stats(state.slot)["in_flight"] > 1:  # all but the last may be accepted whole
            begun = table.upper_length(state.slot) - 1
        written = begun + batch.widest
        # A row that was resumed itself began with what its source had written beyond that place:
        # not more than the slack, which is one token larger in a draft model's caches.
        inherited = state.resumed + batch.slack + 1 if state.resumed else 0
        return max(written, inherited)


def _tokens(state: RequestState) -> bytes:
    return pack([*state.request.prompt_ids, *state.token_ids])
