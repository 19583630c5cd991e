"""Two records of the same cells: which rows became faster or slower, and which do not tell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.decide.comparable import cells
from mlxcel.decide.rank_test import compare_samples, smallest_p

__all__ = ["LEAST_EFFECT", "P_LIMIT", "Change", "Verdict", "compare"]

Value = Mapping[str, Any]
Verdict = Literal["faster", "slower", "undecided"]

P_LIMIT = 0.01
"""Largest p of a difference; six samples a side can reach 0.002."""

LEAST_EFFECT = 0.01
"""Smallest relative difference that is called one, however sure: hosts drift by as much
between two campaigns."""

ARMS = ("classic", "speculative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One arm of one row, in the second record against the first.

    Attributes
    ----------
    prompt : str
        Name of the prompt.
    tokens, width : int
        Token budget and requested width.
    arm : {"classic", "speculative"}
        Which arm.
    first_tok_s, second_tok_s : float
        Medians in tokens per second.
    ratio : float
        Second over first: above 1 is faster.
    interval : tuple of float or None
        95 % interval of the ratio; ``None`` for too few samples.
    p : float
        Of the exact rank test, two-sided.
    n : tuple of int
        Samples of both records.
    least_effect : float
        Relative difference that was asked for.
    verdict : {"faster", "slower", "undecided"}
        What can be said.
    why : str
        In one sentence.
    caveats : tuple of str
        What else to know about the row.
    """

    prompt: str
    tokens: int
    width: int
    arm: str
    first_tok_s: float
    second_tok_s: float
    ratio: float
    interval: tuple[float, float] | None
    p: float
    n: tuple[int, int]
    least_effect: float
    verdict: Verdict
    why: str
    caveats: tuple[str, ...]


def compare(
    first: Value, second: Value, *, p_limit: float = P_LIMIT, least_effect: float = LEAST_EFFECT
) -> tuple[Change, ...]:
    """Compare every row of two records, each arm by itself.

    Parameters
    ----------
    first, second : mapping
        JSON values of measured records between which
        `mlxcel.decide.comparable.mismatches` finds nothing.
    p_limit : float
        Largest p of a difference.
    least_effect : float
        Smallest relative difference. A row's own null arm (the first against the last
        classic run) raises it: what the host did by itself is no finding.

    Returns
    -------
    tuple of Change
        In the order of the first record's rows, the classic arm first, and once where the
        widths of a sweep share it. A row that either record marks as not publishable is
        undecided.
    """
    found: dict[tuple[object, ...], Change] = {}
    others = cells(second)
    for cell, row in cells(first).items():
        for arm in ARMS:
            speeds = (tuple(_speeds(row, arm)), tuple(_speeds(others[cell], arm)))
            # The widths of a sweep share their classic runs: one comparison, not one a width.
            key = (*cell[:2], arm, *speeds)
            if key not in found:
                found[key] = _change(cell, arm, row, others[cell], p_limit, least_effect)
    return tuple(found.values())


def _change(
    cell: tuple[str, int, int],
    arm: str,
    row: Value,
    other: Value,
    p_limit: float,
    least_effect: float,
) -> Change:
    one, two = _speeds(row, arm), _speeds(other, arm)
    found = compare_samples(one, two)
    drifts = [abs(_null_drift(each)) for each in (row, other)]
    least = max(least_effect, *drifts)
    verdict, why = _verdict(found.ratio, found.p, (len(one), len(two)), p_limit, least)
    unpublishable = [
        f"{name} record: {'; '.join(each['reasons'])}"
        for name, each in (("first", row), ("second", other))
        if not each["publishable"]
    ]
    if unpublishable and verdict != "undecided":
        verdict, why = "undecided", f"would be {verdict}, but a row is not publishable"
    caveats = [*unpublishable]
    if _texts(row) != _texts(other):
        caveats.append("the answers are other ones, and acceptance with them")
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Change(
        prompt=cell[0],
        tokens=cell[1],
        width=cell[2],
        arm=arm,
        first_tok_s=statistics.median(one),
        second_tok_s=statistics.median(two),
        ratio=found.ratio,
        interval=interval,
        p=found.p,
        n=(len(one), len(two)),
        least_effect=least,
        verdict=verdict,
        why=why,
        caveats=tuple(caveats),
    )


def _verdict(
    ratio: float, p: float, sizes: tuple[int, int], p_limit: float, least: float
) -> tuple[Verdict, str]:
    percent = f"{100 * (ratio - 1):+.1f} %"
    if smallest_p(*sizes) > p_limit:
        return "undecided", (
            f"{sizes[0]} and {sizes[1]} samples cannot give p below {smallest_p(*sizes):.2g}, "
            f"the limit is {p_limit:g}: repeat more often"
        )
    if p > p_limit:
        return "undecided", f"{percent}, but p is {p:.2g}, above {p_limit:g}"
    if abs(ratio - 1) < least:
        return "undecided", f"{percent} is below the {100 * least:.1f} % that are asked for"
    return ("faster" if ratio > 1 else "slower"), f"{percent}, p {p:.2g}"


def _runs(row: Value, arm: str) -> list[Value]:
    return [run for block in row["raw"]["pairs"] for run in block if run["arm"] == arm]


def _speeds(row: Value, arm: str) -> list[float]:
    return [run["tokens"] / run["seconds"] for run in _runs(row, arm)]


def _null_drift(row: Value) -> float:
    """Relative difference of the last classic run from the first."""
    first, last = (run["tokens"] / run["seconds"] for run in row["raw"]["null"])
    return float(last / first - 1)


def _texts(row: Value) -> set[str]:
    return {run["ids_sha256"] for run in (*_runs(row, ARMS[0]), *_runs(row, ARMS[1]))}
