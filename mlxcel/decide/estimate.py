"""What a burst measured, and the speed-up that follows from several of them.

``speedup = emitted_per_verify * classic_step / round_cost``. Seconds come in as numbers;
whoever measures passes the wall time of whole rounds, so that no part of one is forgotten.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = [
    "MIN_PROBE_MEANS",
    "MIN_ROUNDS",
    "SAMPLE_TARGET",
    "BurstSample",
    "Estimate",
    "RoundStages",
    "estimate",
    "weighted_median",
]

SAMPLE_TARGET = 4
"""Bursts with at least one speculative round that a verdict needs."""

MIN_PROBE_MEANS = 3
"""Bursts with a classic step that a verdict needs: fewer have no median that drops an outlier."""

MIN_ROUNDS = 16
"""Speculative rounds a verdict needs: 4 rounds of a normal burst each; by luck alone the
emitted tokens of 16 rounds differ by about 11 % (deviation about 0.45 of the mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStages:
    """Seconds of the parts of rounds, summed; all of them, so that none is left out.

    Attributes
    ----------
    draft, verify, absorb, host : float
        Proposing; the target's pass; the drafter's own update after it (accept hook);
        everything on the host: planning, settling, emitting.
    """

    draft: float
    verify: float
    absorb: float
    host: float

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return self.draft + self.verify + self.absorb + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSample:
    """What one burst (one request served alone) measured. No tokens and no text.

    Attributes
    ----------
    width : int
        Block width of the speculative rounds counted here, in tokens; rounds of other
        widths (the last ones of a budget) belong elsewhere or nowhere.
    rounds : int
        Speculative rounds.
    emitted : int
        Tokens they emitted.
    seconds : float
        Wall time from the end of the round before the first of them to the end of the
        last, with everything that happens in a round inside.
    proposed, accepted : int
        Drafts.
    probe_rounds : int
        Rounds without drafter: classic steps.
    probe_seconds : float
        Their wall time.

    Raises
    ------
    ConfigError
        Counts or times that cannot be; the message names the field and its value.
    """

    width: int
    rounds: int
    emitted: int
    seconds: float
    proposed: int = 0
    accepted: int = 0
    probe_rounds: int = 0
    probe_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("width", "rounds", "emitted", "proposed", "accepted", "probe_rounds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _bad(name, value, "a whole number from 0")
        for name in ("seconds", "probe_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _bad(name, value, "a number of seconds")
            if not math.isfinite(value) or value < 0:
                raise _bad(name, value, "a finite number of seconds from 0")
        if not self.rounds <= self.emitted <= self.rounds * max(self.width, 1):
            raise _bad("emitted", self.emitted, f"1 to {self.width} in each of {self.rounds}")
        if self.accepted > self.proposed:
            raise _bad("accepted", self.accepted, f"at most proposed = {self.proposed}")

    @classmethod
    def from_stages(
        cls,
        stages: RoundStages,
        *,
        width: int,
        rounds: int,
        emitted: int,
        probe_rounds: int = 0,
        probe_seconds: float = 0.0,
    ) -> BurstSample:
        """A sample of a loop that times the parts of a round one after the other."""
        return cls(
            width=width,
            rounds=rounds,
            emitted=emitted,
            seconds=stages.total,
            probe_rounds=probe_rounds,
            probe_seconds=probe_seconds,
        )

    @property
    def qualifies(self) -> bool:
        """Whether it counts towards a verdict: a speculative round with a time."""
        return self.rounds > 0 and self.seconds > 0

    @property
    def round_seconds(self) -> float:
        """Mean wall time of a speculative round; 0 without one."""
        return self.seconds / self.rounds if self.rounds else 0.0

    @property
    def probe_mean(self) -> float | None:
        """Mean wall time of its classic steps, ``None`` without a usable one."""
        if not self.probe_rounds or self.probe_seconds <= 0:
            return None
        return self.probe_seconds / self.probe_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What several bursts say together.

    Attributes
    ----------
    emitted_per_verify : float
        Tokens per speculative round.
    classic_seconds, round_seconds : float
        A classic step and a whole speculative round.
    samples, rounds : int
        Bursts and rounds behind it.
    """

    emitted_per_verify: float
    classic_seconds: float
    round_seconds: float
    samples: int
    rounds: int

    @property
    def round_cost(self) -> float:
        """Cost of a round in classic steps: the break-even of ``emitted_per_verify``."""
        return self.round_seconds / self.classic_seconds

    @property
    def speedup(self) -> float:
        """Speculative over classic tokens per second."""
        return self.emitted_per_verify / self.round_cost


def estimate(samples: Sequence[BurstSample], probe_means: Sequence[float]) -> Estimate | None:
    """Estimate the speed-up from bursts and classic steps of the same process.

    Parameters
    ----------
    samples : sequence of BurstSample
        Bursts; those that do not qualify are left out.
    probe_means : sequence of float
        Mean classic step of each burst that had one, seconds.

    Returns
    -------
    Estimate or None
        ``None`` where a figure is missing or not positive.

    Notes
    -----
    The classic step is the **median** of the bursts' means and the round time the median
    weighted by rounds, because the first burst of a process compiles: on GB10 its classic
    steps took 1.6 s against 74 ms later. Emitted tokens have no such outlier: their mean
    over all rounds is taken.
    """
    good = [sample for sample in samples if sample.qualifies]
    steps = [mean for mean in probe_means if math.isfinite(mean) and mean > 0]
    if not good or not steps:
        return None
    rounds = sum(sample.rounds for sample in good)
    return Estimate(
        emitted_per_verify=sum(sample.emitted for sample in good) / rounds,
        classic_seconds=statistics.median(steps),
        round_seconds=weighted_median([(s.round_seconds, s.rounds) for s in good]),
        samples=len(good),
        rounds=rounds,
    )


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Median of values with weights.

    Parameters
    ----------
    pairs : sequence of (value, weight)
        At least one with a positive weight.

    Returns
    -------
    float
        The value at half of the weight; the mean of two where it falls between them.

    Raises
    ------
    ConfigError
        No positive weight.
    """
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    half = sum(weight for _, weight in ordered) / 2
    below = 0.0
    for at, (value, weight) in enumerate(ordered):
        below += weight
        if below > half:
            return value
        if below == half:
            return (value + ordered[at + 1][0]) / 2
    raise ConfigError(f"a median needs a positive weight, got {list(pairs)!r}")


def _bad(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"burst sample: {name} must be {wanted}, got {value!r}", param=name)
