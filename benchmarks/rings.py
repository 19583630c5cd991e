"""Slot tables whose rings of rounds are filled and emptied in turn, so each side can be timed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlxcel import _fast

__all__ = ["Rings"]

WIDTH = 4
STOPS = (2, 3)

class Rings:
    """Tables in which every slot runs and none ever ends; half of the drafts hold.

    Parameters
    ----------
    rows : int
        Running slots of each table.
    tables : int
        How many; with all of them a call of `plan` or `settle` should last milliseconds.
    rounds : int
        Rounds that each call plans or settles in every table, 1024 at most.
    """

    def __init__(self, rows: int, tables: int, rounds: int) -> None:
        self.rows, self.rounds = rows, rounds
        self.tables = [self._filled() for _ in range(tables)]
        # Two tokens that are no stop ids.
        self.packed: npt.NDArray[np.uint32] = np.random.default_rng(rows).integers(
            0, 2, (2, rows, WIDTH), dtype=np.uint32
        )
        self._planned = self._settled = 0

    def _filled(self) -> _fast.SlotTable:
        table = _fast.SlotTable(self.rows, WIDTH, 32, self.rounds)
        for _ in range(self.rows):
            table.admit(100, 2**30, WIDTH, STOPS)
        return table

    @property
    def calls(self) -> int:
        """Rounds of one call of `plan` or `settle`, over all tables."""
        return len(self.tables) * self.rounds

    def plan(self) -> int:
        """Fill all rings; returns the number of the last round of each table."""
        number = -1
        for table in self.tables:
            plan_round = table.plan_round
            for _ in range(self.rounds):
                number = plan_round(WIDTH)
        self._planned += self.rounds
        return number

    def settle(self) -> int:
        """Settle all that is planned; returns the tokens emitted by the last round."""
        numbers, packed, emitted = range(self._settled, self._planned), self.packed, 0
        for table in self.tables:
            settle = table.settle
            for number in numbers:
                emitted = settle(number, packed)
        self._settled = self._planned
        return emitted
