"""Seconds of a round by rows and block width: measured, forgotten slowly, guessed from neighbours.

A cell keeps its cost in parts of a speed that all cells share, as `width_rates` does: heat and a
longer context slow all rounds down, and cells that have not run for long follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.fits import least_squares
from mlxcel.errors import LoadError

__all__ = ["MOST_ROWS", "LoadTable", "bucket_of", "worth"]

EXACT_ROWS = 8
"""Row counts up to which each has cells of its own; above, one of a few buckets."""

COST_KEEP = 0.5 ** (1 / 48)
"""Half-life of 48 rounds of a cell: 15 % of jitter leaves 2 % of error in its cost."""

SPEED_STEP = 1 - 0.5 ** (1 / 16)
"""Weight of the newest round, of any cell, in the speed that all share."""

CLIP = 3.0
"""A round over this many times its expected time counts as so much; see `width_rates`."""

FEW = 4.0
"""Rounds up to which the past of a cell may turn out to have been the outlier, and what the past
of a cell still counts that has not run for long."""

IDLE = 256
"""Rounds of any cell after which a cell has not run for long."""

MOST_ROWS = 65536

TOLL = 1.15
"""What a round that drafts counts for more than its seconds, for what drafting costs outside of
rounds: prompts that the drafter reads too, rows that join and leave with the caches of two models,
and answers that come in fewer, later chunks. Answers of 96 tokens on two cores: where rounds
promised 1.27 (8 rows) the whole gave 1.05; where they promised 1.09 (16 rows) it gave 0.98, with
gaps between chunks twice as long."""


def bucket_of(rows: int) -> int:
    """Row count that stands for this one: itself up to 8, then 12, 16, 24, 32, 48 and so on."""
    if rows <= EXACT_ROWS:
        return rows
    power = 1 << ((rows - 1).bit_length() - 1)
    return power + power // 2 if rows <= power + power // 2 else 2 * power


@dataclass(slots=True)
class _Cell:
    """Cost over the common speed; ``cold``: the next round is the first of this process."""

    cost: float = 0.0
    weight: float = 0.0
    rounds: int = 0
    last: int = 0
    cold: bool = True

    def observe(self, ratio: float, now: int) -> float:
        """Take one round in; return its ratio as it was counted."""
        if now - self.last > IDLE:
            self.weight = min(self.weight, FEW)
        if self.weight and ratio > CLIP * self.cost:
            ratio = CLIP * self.cost
        elif ratio * CLIP < self.cost and self.weight <= FEW:
            self.weight = 0.0
        past = self.weight * COST_KEEP
        self.weight = past + 1.0
        self.cost = (self.cost * past + ratio) / self.weight
        self.rounds += 1
        self.last = now
        return ratio


def worth(tokens: Sequence[float], width: int, seconds: float) -> float:
    """Tokens per second of rounds of a width, 0 where their seconds are not known.

    Parameters
    ----------
    tokens : sequence of float
        Tokens of all rows by width.
    width : int
        Which one; those that draft pay `TOLL`.
    seconds : float
        Of such a round.
    """
    charged = seconds * TOLL if width > 1 else seconds
    return tokens[width - 1] / charged if charged else 0.0


class LoadTable:
    """Measured seconds of rounds. Pure; row counts are those of `bucket_of`.

    Attributes
    ----------
    speed : float
        Seconds of a round of relative cost 1; 0 before the first.
    rounds : int
        Counted in this process.
    """

    def __init__(self) -> None:
        self.speed = 0.0
        self.rounds = 0
        self._cells: dict[tuple[int, int], _Cell] = {}

    def observe(self, rows: int, width: int, seconds: float) -> bool:
        """Take one round in; return whether it counts.

        The first round of a cell in a process does not, as it may compile, nor does one
        without time.
        """
        if not math.isfinite(seconds) or seconds <= 0:
            return False
        cell = self._cells.setdefault((rows, width), _Cell())
        if cell.cold:
            cell.cold, cell.last = False, self.rounds
            return False
        self.rounds += 1
        self.speed = self.speed or seconds
        ratio = cell.observe(seconds / self.speed, self.rounds)
        if cell.weight > 1:  # the first of a cell says nothing about the common speed
            self.speed *= 1 + SPEED_STEP * (ratio / cell.cost - 1)
        return True

    def counted(self, rows: int, width: int) -> int:
        """Rounds of a cell ever counted."""
        cell = self._cells.get((rows, width))
        return cell.rounds if cell else 0

    def last(self, rows: int, width: int) -> int:
        """Number of the round in which a cell was last counted; 0 before."""
        cell = self._cells.get((rows, width))
        return cell.last if cell else 0

    def seconds(self, rows: int, width: int) -> float:
        """Measured seconds of a round, 0 where there are none."""
        cell = self._cells.get((rows, width))
        return cell.cost * self.speed if cell else 0.0

    def rate(self, rows: int, tokens: Sequence[float], width: int) -> float:
        """Tokens per second by measured seconds and the toll, 0 where there are none."""
        return worth(tokens, width, self.seconds(rows, width))

    def widths(self, rows: int) -> list[int]:
        """Widths measured with so many rows, ascending."""
        return sorted(w for (r, w), cell in self._cells.items() if r == rows and cell.weight)

    def nearest(self, rows: int) -> int | None:
        """Another row count that has been measured, the nearest by ratio."""
        others = {r for (r, _), cell in self._cells.items() if cell.weight and r != rows}
        return min(others, key=lambda r: (abs(math.log(r / rows)), r), default=None)

    def estimate(self, rows: int, width: int) -> float:
        """Seconds of a round: measured, else guessed, 0 where nothing leads to a figure.

        Guessed by a line through the widths measured with so many rows; with one of them
        measured, in the proportion that the nearest row count has; with none, as there.
        """
        own = self._within(rows, width)
        if own:
            return own
        near, known = self.nearest(rows), self.widths(rows)
        there = self._within(near, width) if near is not None else 0.0
        if near is None or not there or not known:
            return there
        anchor = self._within(near, known[0])
        return there * self.seconds(rows, known[0]) / anchor if anchor else 0.0

    def _within(self, rows: int, width: int) -> float:
        """Measured, or by the line of this row count."""
        measured = self.seconds(rows, width)
        if measured:
            return measured
        points = [
            (float(w), cell.cost, min(cell.weight, 16.0))
            for (r, w), cell in self._cells.items()
            if r == rows and cell.weight
        ]
        line = least_squares(points)
        if line is None:
            return 0.0
        # No block is cheaper than half of the cheapest, whatever a steep line says.
        least = 0.5 * min(cost for _, cost, _ in points)
        return max(line[0] + line[1] * width, least) * self.speed

    def snapshot(self) -> list[dict[str, Any]]:
        """Cells with rounds, by rows and width."""
        return [
            {"rows": rows, "width": width, "rounds": cell.rounds, "seconds": cell.cost * self.speed}
            for (rows, width), cell in sorted(self._cells.items())
            if cell.weight
        ]

    def state(self) -> dict[str, Any]:
        """All that is kept, for JSON."""
        cells = [
            {"rows": r, "width": w, "cost": c.cost, "weight": c.weight, "rounds": c.rounds}
            for (r, w), c in sorted(self._cells.items())
            if c.weight
        ]
        return {"speed": self.speed, "cells": cells}

    def load(self, fields: Fields) -> None:
        """Take over a state; the first round of each cell is cold again.

        Raises
        ------
        LoadError
            A field missing, unknown or out of bounds.
        """
        speed = float(fields.number("speed", 0, 1e6))
        cells: dict[tuple[int, int], _Cell] = {}
        for item in fields.items("cells"):
            at = item.whole("rows", 1, MOST_ROWS), item.whole("width", 1, 1024)
            cells[at] = _Cell(
                cost=float(item.number("cost", 1e-9, 1e9)),
                weight=float(item.number("weight", 1e-9, 1e6)),
                rounds=item.whole("rounds", 1, 10**12),
            )
            item.close()
        fields.close()
        if cells and not speed:
            raise LoadError(f"{fields.where}: speed is 0, but there are cells", param="speed")
        self.speed, self._cells = speed, cells
