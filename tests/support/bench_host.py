"""A host on which benchmarks run without a model: its clock moves by what it makes up."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from mlxcel.bench.arms import Outcome

Speed = Callable[[float], float]


@dataclass
class SimulatedHost:
    """Decodes at made-up speeds.

    Attributes
    ----------
    step : float
        Seconds of a classic step.
    cost, slope : float
        A round of width K costs ``cost + slope * K`` classic steps.
    emitted : float
        Share of the drafts that are accepted.
    noise : float
        Relative standard deviation of a run's time.
    factor : callable
        Multiplies the time of a run, given the number of runs before it.
    answers : dict
        Token ids that a run gives in place of the usual ones, by the number of runs before it.
    narrow : int
        Widest round that runs.
    profiling : int
        Speculative runs at the beginning in which the policy still measures.
    """

    step: float = 0.01
    cost: float = 1.0
    slope: float = 0.1
    emitted: float = 0.5
    noise: float = 0.0
    seed: int = 0
    factor: Speed = lambda number: 1.0
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    narrow: int = 64
    profiling: int = 0
    now: float = 5.0
    asked: list[int | None] = field(default_factory=list)
    margins: list[int] = field(default_factory=list)
    slept: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds

    def run(self, prompt: str, width: int | None, tokens: int) -> Outcome:
        number = len(self.asked)
        self.asked.append(width)
        ids = self.answers.get(number, tuple(range(tokens)))
        decoded = len(ids) - 1
        ran = 1 if width is None else min(width, self.narrow)
        rounds = decoded
        accepted: list[int] = []
        if ran > 1:
            rounds = max(round(decoded / (1 + self.emitted * (ran - 1))), -(-decoded // ran))
            accepted = self._positions(decoded - rounds, rounds, ran - 1)
        steps = rounds if ran == 1 else rounds * (self.cost + self.slope * ran)
        seconds = steps * self.step * self.factor(number)
        seconds *= max(1 + self._random.gauss(0, self.noise), 0.1)
        self.now += 0.05 + seconds  # the prompt is read first
        speculative = sum(arm is not None for arm in self.asked)
        return Outcome(
            token_ids=ids,
            seconds=seconds,
            rounds=rounds,
            proposed=rounds * (ran - 1),
            accepted=sum(accepted),
            width_min=ran,
            width_max=ran,
            accepted_by_position=tuple(accepted),
            profiling=width is not None and speculative <= self.profiling,
        )

    def margin(self, prompt: str, position: int) -> float | None:
        self.margins.append(position)
        return 0.25

    @staticmethod
    def _positions(total: int, rounds: int, places: int) -> list[int]:
        """Accepted drafts by place, the first places first."""
        counts = []
        for place in range(places):
            share = min(rounds, -(-total // (places - place)))
            counts.append(share)
            total -= share
        return counts
