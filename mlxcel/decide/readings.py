"""What follows from a record's rows: speed-up, round cost, mean width, age. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.records import ROUND_LOOP_VERSION, Record, Row
from mlxcel.errors import LoadError

__all__ = [
    "LOOP_CHANGES",
    "LOOP_CHANGES_DATE",
    "Reading",
    "Staleness",
    "acceptance_of",
    "readings",
    "staleness",
]

Staleness = Literal["current", "stale", "undated"]

LOOP_CHANGES = ("#1194", "#1199", "#1203", "#1208", "#1215")
"""Changes of lablup/mlxcel that made its older evidence stale, in order (founding document,
"Why the founding evidence is stale", point 1)."""

LOOP_CHANGES_DATE = "2026-08-19"
"""Day of the first published figures that were taken with all of `LOOP_CHANGES` (the
round-cost model that the founding document quotes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One row with what follows from it.

    Attributes
    ----------
    record : Record
        The campaign.
    row : Row
        The row.
    acceptance : float or None
        As given, else from the counts; ``None`` where they hold only judged drafts, see
        `mlxcel.decide.provenance.Provenance`.
    classic_tok_s : float or None
        As given, else of the same prompt in the record named by ``classic_from``.
    speedup : float or None
        As the source gives it, else from both speeds.
    round_cost : float or None
        In classic steps: emitted per verify over ``speedup``.
    fit_cost : float or None
        The same for fits: over the ratio of both speeds where they are known, which has more
        digits than a printed speed-up.
    mean_width : float or None
        ``1 + (emitted - 1) / acceptance``: the width that the rounds had on average. Below the
        width asked for where a controller or the budget made rounds narrower.
    """

    record: Record
    row: Row
    acceptance: float | None
    classic_tok_s: float | None
    speedup: float | None
    round_cost: float | None
    fit_cost: float | None
    mean_width: float | None


def readings(records: Iterable[Record]) -> tuple[Reading, ...]:
    """Read every row of every record.

    Raises
    ------
    LoadError
        Two records with one id, or a ``classic_from`` that names no record of the same host.
    """
    known: dict[str, Record] = {}
    for record in records:
        if record.id in known:
            raise LoadError(f"two records have the id {record.id!r}; rename one")
        known[record.id] = record
    return tuple(
        _reading(record, row, _source(record, known))
        for record in known.values()
        for row in record.rows
    )


def acceptance_of(row: Row) -> float | None:
    """Acceptance of a row, from its counts where the source gives no ratio."""
    if row.acceptance is None and row.accepted is not None and row.proposed is not None:
        return row.accepted / row.proposed
    return row.acceptance


def staleness(record: Record, version: int = ROUND_LOOP_VERSION) -> Staleness:
    """Whether the round loop has changed since a record was taken.

    A measured record is compared by the loop's version, a published one by its date: before
    `LOOP_CHANGES_DATE` it lacks at least one of `LOOP_CHANGES`. A date known to the month only
    counts as its first day. ``"undated"`` when the source tells neither its date nor that the
    last of the changes was in.
    """
    if isinstance(record.round_loop, int):
        return "stale" if record.round_loop < version else "current"
    if LOOP_CHANGES[-1] in record.includes:
        return "current"
    if record.date is None:
        return "undated"
    return "stale" if record.date < LOOP_CHANGES_DATE else "current"


def _source(record: Record, known: dict[str, Record]) -> Record:
    """The record that gives the classic speed."""
    if record.classic_from is None:
        return record
    source = known.get(record.classic_from)
    if source is None or source.host.chip != record.host.chip:
        raise LoadError(
            f"{record.id}: classic_from {record.classic_from!r} is no record of the host "
            f"{record.host.chip!r}; name one that is"
        )
    return source


def _reading(record: Record, row: Row, source: Record) -> Reading:
    classic = row.classic_tok_s
    if classic is None and source is not record and row.prompt is not None:
        speeds = {r.prompt: r.classic_tok_s for r in source.rows}
        classic = speeds.get(row.prompt)
    ratio = row.speedup
    if classic is not None and row.speculative_tok_s is not None:
        ratio = row.speculative_tok_s / classic
    speedup = ratio if row.speedup is None else row.speedup
    judged = record.provenance is not None and record.provenance.drafts == "judged"
    acceptance, emitted = None if judged else acceptance_of(row), row.emitted_per_verify
    return Reading(
        record=record,
        row=row,
        acceptance=acceptance,
        classic_tok_s=classic,
        speedup=speedup,
        round_cost=emitted / speedup if emitted is not None and speedup else None,
        fit_cost=emitted / ratio if emitted is not None and ratio else None,
        mean_width=1 + (emitted - 1) / acceptance if emitted is not None and acceptance else None,
    )
