"""The rows that decode together: target batch and drafter, kept in step with the slots."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxcel.engine.drafters import Drafter
from mlxcel.engine.reading import Reading
from mlxcel.runtime.batch import Batch

__all__ = ["Rows"]

GONE = -1
"""Slot of a row whose request has ended; the next `Rows.arrange` drops it."""


class Rows:
    """Which slot each row of the batch belongs to.

    Parameters
    ----------
    batch : Batch
        The target's rows.
    drafter : Drafter or None
        Keeps rows of its own beside them.

    Attributes
    ----------
    slots : list of int
        Slot of each row.
    """

    def __init__(self, batch: Batch, drafter: Drafter | None) -> None:
        self.batch = batch
        self.drafter = drafter
        self.slots: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of key/value buffers and of the drafter's own state."""
        return self.batch.caches.nbytes + (self.drafter.nbytes if self.drafter else 0)

    def join(self, slot: int, reading: Reading, bonus: int) -> None:
        """Add a context that has been read, with the output token behind it.

        It goes where the next `arrange` wants it, so that nothing is copied a second time.
        """
        context, rows = reading.state.context, len(self.slots)
        at = next((row for row, other in enumerate(self.slots) if other > slot), rows)
        self.batch.join(
            reading.prefill.caches, reading.sampler, length=len(context),
            bonus=mx.array([bonus], mx.uint32), previous=context[-1], at=at,
        )  # fmt: skip
        if self.drafter is not None and reading.drafting is not None:
            self.drafter.join(slot, context, bonus, reading.drafting)
            if at < rows:
                self.drafter.keep([*range(at), rows, *range(at, rows)])
        self.slots.insert(at, slot)

    def arrange(self, slots: Sequence[int], positions: int) -> None:
        """Make the rows of the batch those of these slots, in this order.

        Parameters
        ----------
        slots : sequence of int
            Slots of running requests.
        positions : int
            Upper bound of what the next round reads and writes; buffers that are much larger
            are cut when rows leave.
        """
        rows = [self.slots.index(slot) for slot in slots]
        if rows == list(range(len(self.slots))):
            return
        self.batch.keep(rows, positions)
        if self.drafter is not None:
            self.drafter.keep(rows)
        self.slots = list(slots)

    def leave(self, slot: int) -> None:
        """The request in this slot has ended; its row goes with the next `arrange`."""
        if slot in self.slots:
            self.slots[self.slots.index(slot)] = GONE
        if self.drafter is not None:
            self.drafter.leave(slot)

    def clear(self) -> None:
        """Nobody runs: give the buffers back."""
        self.batch.clear()
        if self.drafter is not None:
            self.drafter.keep([])
        self.slots = []
