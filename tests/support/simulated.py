"""Hosts made of numbers: what rounds would yield and cost, without a model or a clock.

Costs follow ``classic * (base + slope * K)`` for K >= 2 and ``classic`` for K = 1; drafts are
accepted position by position with a given chance. Everything is repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlxcel.decide.estimate import BurstSample
from mlxcel.decide.policy import MtpPolicy
from mlxcel.decide.width import WidthController

Chances = Callable[[int], float]
"""Acceptance of a draft in a given round of the host."""


@dataclass
class SimulatedHost:
    """One host with one pairing.

    ``classic`` is seconds per classic step, ``acceptance`` a chance or a function of the
    round number, ``jitter`` the relative deviation of times, ``drift`` a factor of all times
    by round number, ``cold`` the seconds of the first round of each width in the process,
    ``fall`` what acceptance is multiplied by from one position to the next.
    """

    base: float
    slope: float
    acceptance: float | Chances
    classic: float = 0.074
    jitter: float = 0.0
    drift: Callable[[int], float] = lambda round_: 1.0
    cold: float = 0.0
    fall: float = 0.97
    seed: int = 0
    rounds: int = 0
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def cost(self, width: int) -> float:
        """Classic steps per round."""
        return 1.0 if width == 1 else self.base + self.slope * width

    def chance(self, position: int) -> float:
        """Acceptance at a draft position now."""
        first = self.acceptance if isinstance(self.acceptance, float) else None
        if first is None:
            assert callable(self.acceptance)
            first = self.acceptance(self.rounds)
        return first * self.fall**position

    def expected(self, width: int) -> float:
        """Expected tokens per round now."""
        total = reached = 1.0
        for position in range(width - 1):
            reached *= self.chance(position)
            total += reached
        return total

    def rate(self, width: int) -> float:
        """Expected tokens per second at a width now."""
        seconds = self.classic * self.cost(width) * self.drift(self.rounds)
        return self.expected(width) / seconds

    def best(self, widths: Sequence[int]) -> int:
        """The fastest width now."""
        return max(widths, key=self.rate)

    def round(self, width: int) -> tuple[int, float]:
        """Run a round; tokens and seconds."""
        emitted = 1
        while emitted < width and self._random.random() < self.chance(emitted - 1):
            emitted += 1
        seconds = self.classic * self.cost(width) * self.drift(self.rounds)
        if self.jitter:
            seconds *= max(self._random.gauss(1.0, self.jitter), 0.3)
        if self.cold and width not in self.seen:
            seconds = self.cold
        self.seen.add(width)
        self.rounds += 1
        return emitted, seconds


def burst(host: SimulatedHost, policy: MtpPolicy, tokens: int, now: float = 0.0) -> BurstSample:
    """Serve one request as the engine does, and tell the policy.

    ``tokens`` are those after the first. Rounds that the budget clamps count only where
    there are no others.
    """
    run = policy.decide(now).run
    probes = policy.probe_rounds(tokens) if run else tokens
    probe_seconds = sum(host.round(1)[1] for _ in range(probes))
    left = tokens - probes
    by_width: dict[int, list[tuple[int, float]]] = {}
    while left > 0 and run:
        width = min(policy.key.width, left)
        if width == 1:
            break
        emitted, seconds = host.round(width)
        by_width.setdefault(width, []).append((emitted, seconds))
        left -= emitted
    width = max(by_width, default=policy.key.width)
    rounds = by_width.get(width, [])
    sample = BurstSample(
        width=width,
        rounds=len(rounds),
        emitted=sum(emitted for emitted, _ in rounds),
        seconds=sum(seconds for _, seconds in rounds),
        probe_rounds=probes,
        probe_seconds=probe_seconds,
    )
    policy.observe(sample, now)
    return sample


@dataclass
class Run:
    """What a controller did on a host: share of the best rate reached, and its widths."""

    share: float
    widths: list[int]


def drive(
    controller: WidthController,
    host: SimulatedHost,
    rounds: int,
    *,
    request: int = 10**9,
    skip: int = 0,
    pipelined: bool = False,
) -> Run:
    """Let a controller run a host for some rounds, as requests of so many tokens.

    ``share`` is the tokens of all rounds after ``skip`` over what the best width that the
    budget allows at each moment would have given in the same seconds, both by expectation,
    so luck in acceptance does not count. One round is chosen ahead, as in the engine; with
    ``pipelined`` a round before one of another width has no time.
    """
    widths: list[int] = []
    got = could = 0.0
    left = request
    ahead: list[tuple[int, int, float]] = []
    for number in range(rounds):
        width = controller.choose(max(left, 1))
        rate, best = host.rate(width), host.rate(host.best(range(1, min(left, 16) + 1)))
        emitted, seconds = host.round(width)
        emitted = min(emitted, max(left, 1))
        ahead.append((width, emitted, seconds))
        if len(ahead) > 1:
            before = ahead.pop(0)
            if not pipelined or before[0] == width:
                controller.observe(*before)
        widths.append(width)
        left -= emitted
        left = request if left <= 0 else left
        if number >= skip:
            got += rate * seconds
            could += best * seconds
    return Run(got / could if could else 0.0, widths)
