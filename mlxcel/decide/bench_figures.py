"""Every figure of a measured row, and whether it may be published, from its raw samples alone.

Pure and repeatable: the same samples give the same figures on any machine, so a stored record
can be checked by working them out again. Figures are rounded to six significant digits, samples
too; what follows from them is worked out from the rounded samples.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mlxcel.decide.bench_limits import (
    BOOTSTRAP_SAMPLES,
    BOOTSTRAP_SEED,
    CONFIDENCE,
    DRIFT_ERRORS,
    DRIFT_LIMIT_PERCENT,
    MIN_BLOCKS,
    NULL_LIMIT_PERCENT,
)
from mlxcel.decide.fits import SPREAD_LIMIT_PERCENT, least_squares, spread_percent
from mlxcel.decide.provenance import guard_complaints
from mlxcel.decide.raw_runs import Arm, RawRow, Run

__all__ = ["DERIVED", "Drift", "Figures", "derive", "drift", "interval_of", "rounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What follows from the samples of a row.

    Attributes
    ----------
    n : int
        Samples of each arm.
    classic_samples, speculative_samples : tuple of float
        Tokens per second, in the order they ran.
    classic_tok_s, speculative_tok_s, speedup : float
        Medians, and their ratio.
    interval : tuple of float
        Percentile bootstrap interval of `speedup`, see `interval_of`.
    spread_percent : float
        ``100 (max - min) / median``, the larger of both arms.
    accepted, proposed : int or None
        Drafts of all runs; ``None`` where none was proposed.
    acceptance : float or None
        Their ratio.
    emitted_per_verify, round_cost : float
        Tokens per verify, and that over `speedup`: the cost of a round in classic steps.
    effective_width : int
        The widest round that ran.
    exact : bool
        Whether every run gave the same token ids.
    publishable : bool
        Whether nothing speaks against it.
    reasons : tuple of str
        What does.
    """

    n: int
    classic_samples: tuple[float, ...]
    speculative_samples: tuple[float, ...]
    classic_tok_s: float
    speculative_tok_s: float
    speedup: float
    interval: tuple[float, float]
    spread_percent: float
    accepted: int | None
    proposed: int | None
    acceptance: float | None
    emitted_per_verify: float
    round_cost: float
    effective_width: int
    exact: bool
    publishable: bool
    reasons: tuple[str, ...]


DERIVED = tuple(spec.name for spec in fields(Figures))
"""Names of the derived fields of a row."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How the classic speed moved from the first run to the last.

    Attributes
    ----------
    percent : float
        By a line through the logarithms of all classic speeds over time.
    error : float
        Its standard error, in percent; 0 for a perfect line.
    """

    percent: float
    error: float

    @property
    def found(self) -> bool:
        """Whether it is too large, and more than noise."""
        size = abs(self.percent)
        return size > DRIFT_LIMIT_PERCENT and size > DRIFT_ERRORS * self.error


def derive(raw: RawRow, *, requested_width: int, guards: Mapping[str, Any]) -> Figures:
    """Work out the figures of a row.

    Parameters
    ----------
    raw : RawRow
        All its runs.
    requested_width : int
        Block width that was asked for.
    guards : mapping
        See `mlxcel.decide.provenance.Provenance`.
    """
    classic, speculative = _speeds(raw, "classic"), _speeds(raw, "speculative")
    slow, fast = statistics.median(classic), statistics.median(speculative)
    runs = raw.of("speculative")
    tokens, rounds = sum(r.tokens for r in runs), sum(r.rounds for r in runs)
    accepted, proposed = sum(r.accepted for r in runs), sum(r.proposed for r in runs)
    reasons = (*_of_runs(raw, requested_width), *_of_null(raw), *guard_complaints(guards))
    return Figures(
        n=len(classic),
        classic_samples=classic,
        speculative_samples=speculative,
        classic_tok_s=rounded(slow),
        speculative_tok_s=rounded(fast),
        speedup=rounded(fast / slow),
        interval=interval_of(raw),
        spread_percent=rounded(max(spread_percent(classic), spread_percent(speculative))),
        accepted=accepted if proposed else None,
        proposed=proposed or None,
        acceptance=rounded(accepted / proposed) if proposed else None,
        emitted_per_verify=rounded(tokens / rounds),
        round_cost=rounded(tokens / rounds * slow / fast),
        effective_width=max(run.width_max for run in runs),
        exact=len({run.ids_sha256 for run in raw.in_order()}) == 1,
        publishable=not reasons,
        reasons=reasons,
    )


def rounded(value: float) -> float:
    """A figure with six significant digits."""
    return float(f"{value:.6g}")


def interval_of(raw: RawRow) -> tuple[float, float]:
    """Confidence interval of the ratio of both medians.

    Whole blocks are drawn with replacement, so that what both arms of a block share stays
    shared; the interval lies between the percentiles of the ratios (Efron, Tibshirani, *An
    Introduction to the Bootstrap*, 1993, chapter 13). The seed is fixed. Of one block the
    interval is its ratio alone.

    Returns
    -------
    (low, high)
        For the confidence `CONFIDENCE`.
    """
    blocks = [
        tuple([rounded(run.speed) for run in block if run.arm == arm] for arm in _ARMS)
        for block in raw.pairs
    ]
    draw = random.Random(BOOTSTRAP_SEED)
    ratios = []
    for _ in range(BOOTSTRAP_SAMPLES):
        # random() alone is the same in every version of Python.
        drawn = [blocks[int(draw.random() * len(blocks))] for _ in blocks]
        slow, fast = (statistics.median([x for b in drawn for x in b[at]]) for at in (0, 1))
        ratios.append(fast / slow)
    ratios.sort()
    tail = round((1 - CONFIDENCE) / 2 * (BOOTSTRAP_SAMPLES - 1))
    return rounded(ratios[tail]), rounded(ratios[-1 - tail])


def drift(runs: Sequence[Run]) -> Drift:
    """Drift of runs of one arm, in the order they ran; at least two."""
    points = [(run.started_s, math.log(run.speed), 1.0) for run in runs]
    line = least_squares(points)
    if line is None:
        return Drift(0.0, 0.0)
    a, b = line
    span = points[-1][0] - points[0][0]
    mean = math.fsum(x for x, _, _ in points) / len(points)
    rest = math.fsum((y - a - b * x) ** 2 for x, y, _ in points)
    free = max(len(points) - 2, 1)
    error = math.sqrt(rest / free / math.fsum((x - mean) ** 2 for x, _, _ in points))
    return Drift(100 * math.expm1(b * span), 100 * error * span)


_ARMS: tuple[Arm, ...] = ("classic", "speculative")


def _speeds(raw: RawRow, arm: Arm) -> tuple[float, ...]:
    return tuple(rounded(run.speed) for run in raw.of(arm))


def _of_runs(raw: RawRow, requested_width: int) -> list[str]:
    """What speaks against the runs of the blocks."""
    found = []
    if len(raw.pairs) < MIN_BLOCKS:
        found.append(f"too few repetitions: {len(raw.pairs)} of {MIN_BLOCKS} blocks")
    for arm in _ARMS:
        spread = spread_percent(_speeds(raw, arm))
        if spread > SPREAD_LIMIT_PERCENT:
            found.append(
                f"spread of the {arm} arm {spread:.1f} % is above {SPREAD_LIMIT_PERCENT:g} %"
            )
    found += _of_ids(raw)
    profiling = sum(run.profiling for run in raw.in_order())
    if profiling:
        found.append(f"the policy's profiling window was not over in {profiling} runs")
    ran = max(run.width_max for run in raw.of("speculative"))
    if ran < requested_width:
        found.append(f"the widest round had width {ran}, below the {requested_width} asked for")
    return found


def _of_ids(raw: RawRow) -> list[str]:
    """What speaks against the token ids; each pair is compared within its own block."""
    if len({run.ids_sha256 for run in raw.classic()}) > 1:
        return ["the classic runs differ among themselves, so equality cannot be judged"]
    wrong = sum(
        run.ids_sha256 != block[0].ids_sha256
        for block in raw.pairs
        for run in block
        if run.arm == "speculative"
    )
    total = len(raw.of("speculative"))
    return [f"token ids differ from the classic ones in {wrong} of {total} runs"] if wrong else []


def _of_null(raw: RawRow) -> list[str]:
    """What the null arm says: classic first against last, and against the blocks."""
    found = []
    trend = drift(raw.classic())
    if trend.found:
        found.append(
            f"classic speed drifted by {trend.percent:+.1f} % from the first run to the last; "
            f"the limit is {DRIFT_LIMIT_PERCENT:g} %"
        )
    first, last = (run.speed for run in raw.null)
    change = 100 * (last / first - 1)
    if abs(change) > SPREAD_LIMIT_PERCENT:
        found.append(
            f"null arm: the last classic run was {change:+.1f} % against the first; the limit is "
            f"{SPREAD_LIMIT_PERCENT:g} %"
        )
    outside = statistics.median(run.speed for run in raw.null)
    inside = statistics.median(run.speed for run in raw.of("classic"))
    change = 100 * (outside / inside - 1)
    if abs(change) > NULL_LIMIT_PERCENT:
        found.append(
            f"null arm: classic alone was {change:+.1f} % against classic between speculative "
            f"runs; the limit is {NULL_LIMIT_PERCENT:g} %"
        )
    return found
