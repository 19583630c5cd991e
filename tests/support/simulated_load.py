"""Hosts made of numbers for rounds of several rows: what they cost and what they yield."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlxcel.decide.load_tokens import LoadTokens
from mlxcel.decide.load_width import LoadWidths
from mlxcel.decide.width_model import AcceptanceCurve

Cost = Callable[[int, int], float]
"""Seconds of a round by rows and width."""


def filled(rows_free: float, *, draft: float = 0.05) -> Cost:
    """A host on which so many tokens of a pass are free, and each further one costs its share.

    ``draft`` is what a draft step costs in classic steps.
    """

    def cost(rows: int, width: int) -> float:
        return 0.02 * (max(rows * width / rows_free, 1.0) + draft * (width - 1))

    return cost


@dataclass
class LoadHost:
    """``rows`` and ``acceptance`` may be functions of the round number, as ``drift`` is."""

    cost: Cost
    rows: int | Callable[[int], int] = 4
    acceptance: float | Callable[[int, int], float] = 0.7
    drift: Callable[[int], float] = lambda number: 1.0
    jitter: float = 0.03
    cold: float = 0.0
    length: int = 10**9
    seed: int = 0
    number: int = 0
    seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._rates: dict[tuple[int, tuple[float, ...]], float] = {}

    def rows_now(self) -> int:
        return self.rows if isinstance(self.rows, int) else self.rows(self.number)

    def chance(self, row: int) -> float:
        given = self.acceptance
        return given if isinstance(given, float) else given(self.number, row)

    def rate(self, width: int) -> float:
        """Expected tokens of all rows per second now."""
        rows = self.rows_now()
        chances = tuple(self.chance(row) for row in range(rows))
        if (width, chances) not in self._rates:
            tokens = sum(chance**at for chance in chances for at in range(width))
            self._rates[width, chances] = tokens / self.cost(rows, width)
        return self._rates[width, chances] / self.drift(self.number)

    def round(self, width: int) -> tuple[list[int], float]:
        """Run a round; tokens of each row, seconds."""
        rows = self.rows_now()
        emitted = []
        for row in range(rows):
            count = 1
            while count < width and self._random.random() < self.chance(row):
                count += 1
            emitted.append(count)
        seconds = self.cost(rows, width) * self.drift(self.number)
        seconds *= max(self._random.gauss(1.0, self.jitter), 0.5)
        if self.cold and (rows, width) not in self.seen:
            seconds = self.cold
        self.seen.add((rows, width))
        self.number += 1
        return emitted, seconds


@dataclass
class LoadRun:
    """Shares of the best width's and of classic decode's tokens in the same seconds."""

    best: float
    classic: float
    widths: list[int]
    found: dict[int, int]


def drive_load(
    widths: LoadWidths, host: LoadHost, rounds: int, *, skip: int = 0, widest: int = 8,
    arms: Sequence[int] | None = None,
) -> LoadRun:  # fmt: skip
    """Let it run a host, one round chosen ahead; a round before an unlike one has no time."""
    known = LoadTokens(widest)
    curves: dict[int, AcceptanceCurve] = {}
    ahead: list[tuple[int, int, list[int], float]] = []
    got = could = classic = 0.0
    chosen, waking = [], 0
    for number in range(rounds):
        rows = host.rows_now()
        for row in range(rows):
            if row not in curves or (number % host.length == 0 and number):
                curves[row] = known.row()
        tokens = known.of([curves[row] for row in range(rows)], [widest] * rows, 0)
        width = widths.choose(rows, tokens, joining=0)
        if widths.waking != waking:
            waking = widths.waking
            known.stale(curves.values())
        rates = {each: host.rate(each) for each in arms or range(1, widest + 1)}
        emitted, seconds = host.round(width)
        ahead.append((rows, width, emitted, seconds))
        if len(ahead) > 1:
            then, its, counts, took = ahead.pop(0)
            for row, count in enumerate(counts):
                known.observe(curves[row], its, count)
            known.round_ended()
            if (then, its) == (rows, width):
                widths.observe(then, its, took)
        chosen.append(width)
        if number >= skip:
            got += rates[width] * seconds
            could += max(rates.values()) * seconds
            classic += rates[1] * seconds
    found = dict(widths.snapshot()["holders"])
    return LoadRun(got / could, got / classic, chosen, found)
