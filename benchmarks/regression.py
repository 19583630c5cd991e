"""Whether benchmarks have become slower: ratios against a baseline, counters, fingerprints.

Pure: values in, values out. A *ratio* is the time of a benchmark over that of a reference kernel
run before and after it, so most of what slows a whole machine cancels. One *run* is one process;
its ratios share memory layout and code addresses, so that two runs of the same code may differ by
more than their own spread says. Hence a regression has to show in every run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import mannwhitneyu

__all__ = [
    "ALPHA",
    "LIMIT",
    "Finding",
    "Kind",
    "Measurement",
    "compare",
    "compare_counters",
    "differences",
    "suspects",
    "trouble",
]

LIMIT = 0.05
"""Slower by less than this share is no regression, however sure."""
ALPHA = 0.01
"""Bound of the U test's error (Mann and Whitney 1947), one-sided."""
UNSTEADY = 0.10
"""Interquartile range over median from which a run is no base for conclusions."""
SHORTEST = 1e-3
"""Seconds; shorter times are mostly those of the clock and of Python around it."""

Kind = Literal[
    "same", "faster", "slower?", "REGRESSED", "MISSING", "new", "CHANGED", "ROSE", "fell"
]
"""Those in capitals fail a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One benchmark.

    Attributes
    ----------
    reference : str
        Name of the reference kernel with its size.
    seconds : sequence of sequence of float
        Of the benchmark, by run.
    ratios : sequence of sequence of float
        Seconds over those of the reference around them, by run.
    """

    reference: str
    seconds: Sequence[Sequence[float]]
    ratios: Sequence[Sequence[float]]

    @property
    def pooled(self) -> list[float]:
        """Ratios of all runs."""
        return [ratio for run in self.ratios for ratio in run]

    @property
    def median(self) -> float:
        """Median of all ratios."""
        return statistics.median(self.pooled)

    def with_run_of(self, other: Measurement) -> Measurement:
        """These runs and another's behind them."""
        return Measurement(
            reference=self.reference,
            seconds=[*self.seconds, *other.seconds],
            ratios=[*self.ratios, *other.ratios],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one benchmark or counter.

    Attributes
    ----------
    name : str
        Of the benchmark; of a counter after its case.
    kind : Kind
        What it is.
    message : str
        For people.
    """

    name: str
    kind: Kind
    message: str

    @property
    def fails(self) -> bool:
        """Whether it fails the comparison."""
        return self.kind.isupper()


def compare(
    baseline: Mapping[str, Measurement], current: Mapping[str, Measurement]
) -> list[Finding]:
    """Compare every benchmark with its baseline.

    Parameters
    ----------
    baseline, current : mapping of str to Measurement
        By name.

    Returns
    -------
    list of Finding
        In the order of the baseline, then what is new. ``slower?`` is one beyond `LIMIT` that is
        not sure: not significant, or not in every run.
    """
    found = [_compared(name, old, current.get(name)) for name, old in baseline.items()]
    return found + [
        Finding(name=name, kind="new", message="has no baseline yet: make bench-baseline")
        for name in current
        if name not in baseline
    ]


def _compared(name: str, old: Measurement, new: Measurement | None) -> Finding:
    if new is None:
        message = (
            "is in the baseline and was not measured: if it was renamed or removed on purpose, "
            "make bench-baseline"
        )
        return Finding(name=name, kind="MISSING", message=message)
    if new.reference != old.reference:
        message = (
            f"is measured against {new.reference!r}, its baseline against {old.reference!r}: "
            "make bench-baseline"
        )
        return Finding(name=name, kind="CHANGED", message=message)
    effect = new.median / old.median - 1.0
    slower = effect > 0.0
    test = mannwhitneyu(new.pooled, old.pooled, alternative="greater" if slower else "less")
    chance = float(test.pvalue)
    words = f"{old.median:.4g} -> {new.median:.4g} ({100 * effect:+.1f} %, p {chance:.2g})"
    return Finding(name=name, kind=_verdict(old, new, effect, chance), message=words)


def _verdict(old: Measurement, new: Measurement, effect: float, chance: float) -> Kind:
    if abs(effect) <= LIMIT:
        return "same"
    if effect < 0.0:
        return "faster" if chance < ALPHA else "same"
    floor = (1.0 + LIMIT) * old.median
    everywhere = all(statistics.median(run) > floor for run in new.ratios)
    return "REGRESSED" if chance < ALPHA and everywhere else "slower?"


def suspects(findings: Sequence[Finding]) -> list[str]:
    """Names that have to be measured again before they are called slower."""
    return [each.name for each in findings if each.kind in ("REGRESSED", "slower?")]


def compare_counters(
    baseline: Mapping[str, Mapping[str, int]], current: Mapping[str, Mapping[str, int]]
) -> list[Finding]:
    """Compare exact counters; one that rose fails.

    Parameters
    ----------
    baseline, current : mapping of str to mapping of str to int
        Counts by case and counter.

    Returns
    -------
    list of Finding
        What differs; nothing for equal counters.
    """
    found: list[Finding] = []
    for case, wanted in baseline.items():
        if case not in current:
            message = "is in the baseline and was not counted: make bench-counters if meant"
            found.append(Finding(name=case, kind="MISSING", message=message))
        else:
            found += _counted(case, wanted, current[case])
    return found + [
        Finding(name=case, kind="new", message="has no baseline yet: make bench-counters")
        for case in current
        if case not in baseline
    ]


def _counted(case: str, wanted: Mapping[str, int], got: Mapping[str, int]) -> list[Finding]:
    found: list[Finding] = []
    for counter in {**wanted, **got}:
        old, new, name = wanted.get(counter), got.get(counter), f"{case}: {counter}"
        if old is None or new is None:
            message = f"{old} in the baseline, {new} here: make bench-counters if meant"
            kind: Kind = "CHANGED"
        elif new == old:
            continue
        elif new > old:
            kind = "ROSE"
            message = f"{old} -> {new}: make bench-counters if it has to be so"
        else:
            kind = "fell"
            message = f"{old} -> {new}: make bench-counters keeps it there"
        found.append(Finding(name=name, kind=kind, message=message))
    return found


def trouble(measured: Measurement) -> str:
    """Why a measurement is no base for conclusions; empty if it is one.

    Quartiles are looked at and not extremes or the standard deviation: a single outlier moves
    neither the medians nor the ranks that `compare` goes by.
    """
    shortest = min(min(run) for run in measured.seconds)
    if shortest < SHORTEST:
        return f"takes {1e3 * shortest:.2f} ms; below {1e3 * SHORTEST:.0f} ms the clock counts"
    for run in measured.ratios:
        low, middle, high = statistics.quantiles(run, n=4, method="inclusive")
        spread = (high - low) / middle
        if spread > UNSTEADY - 1e-9:
            return f"the quartiles of a run are {100 * spread:.0f} % of the median apart"
    return ""


def differences(baseline: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """In what two fingerprints differ, one sentence each."""
    return [
        f"{name}: {baseline.get(name, 'not recorded')} in the baseline, "
        f"{here.get(name, 'not recorded')} here"
        for name in {**baseline, **here}
        if baseline.get(name) != here.get(name)
    ]
