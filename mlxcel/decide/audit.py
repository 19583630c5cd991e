"""What is weak in the evidence: each finding names its records and what would settle it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.agreement import conflicts
from mlxcel.decide.fits import SPREAD_LIMIT_PERCENT, spread_percent
from mlxcel.decide.matrix import Matrix, decide
from mlxcel.decide.readings import LOOP_CHANGES, Reading, readings, staleness
from mlxcel.decide.records import EXACT_FORMS, ROUND_LOOP_VERSION, Record, Row

__all__ = ["WANTED", "Finding", "FindingKind", "Want", "audit"]

FindingKind = Literal[
    "stale", "undated", "inferred", "single-run", "spread", "unpublishable", "width", "conflict",
    "missing",
]  # fmt: skip

_WIDTH_GAP = 0.25
"""Distance of the mean from the stated width above which the row is not of that width: well
beyond the last, shorter round of a burst."""

_SHORT_PROTOCOLS = {
    "single-run": "one timed run a cell, no alternation, no contention guard",
    "fast-test": "a short run on a test build, no spread limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One weakness.

    Attributes
    ----------
    kind : str
        ``stale`` and ``undated``: taken before the round loop changed, or possibly so.
        ``inferred``: the gate's entry rests on no measurement. ``single-run``: one timed run
        a cell, or a short test. ``spread``: above the publication limit. ``unpublishable``: the
        row breaks a limit of the protocol. ``width``: the rounds were narrower than the row says.
        ``conflict``: gains and losses side by side.
        ``missing``: wanted and not there.
    subject : str
        What it is about.
    evidence : tuple of str
        Ids of the records; empty for what is missing.
    message, settle : str
        What was found, and what would settle it.
    """

    kind: FindingKind
    subject: str
    evidence: tuple[str, ...]
    message: str
    settle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Evidence that there should be; ``None`` and false mean any.

    ``not_chip`` excludes a chip, so that ``generation="M3", not_chip="Apple M3 Ultra"`` asks
    for another variant of the generation.
    """

    subject: str
    generation: str
    settle: str
    chip: str | None = None
    not_chip: str | None = None
    pairing: str | None = None
    guarded: bool = False
    exact: bool = False

    def met_by(self, record: Record) -> bool:
        """Whether a record is what is wanted: governed, with a speed-up, on such a host."""
        host = record.host
        return (
            record.pairing.governed
            and host.generation == self.generation
            and self.chip in (None, host.chip)
            and self.not_chip != host.chip
            and self.pairing in (None, record.pairing.name)
            and (not self.guarded or record.protocol == "guarded")
            and (not self.exact or record.exactness in EXACT_FORMS)
            and any(
                (row.speedup or row.speculative_tok_s) and row.publishable is not False
                for row in record.rows
            )
        )


_G31 = "Gemma 4 31B"
_RUN = "scripts/bench_speculative.sh gemma31b under scripts/with_indexers_paused.sh, or its like"

WANTED = (
    Want(
        subject="M1 Ultra, Gemma 4 31B, guarded protocol",
        generation="M1",
        chip="Apple M1 Ultra",
        pairing=_G31,
        guarded=True,
        settle=f"{_RUN}; it also settles the prediction for this host",
    ),
    Want(subject="M2, any", generation="M2", settle="a governed pairing on any M2 host"),
    Want(
        subject="M3 Ultra, Gemma 4 31B, exact path",
        generation="M3",
        chip="Apple M3 Ultra",
        pairing=_G31,
        exact=True,
        settle=f"{_RUN}, after the exactness probe has passed",
    ),
    Want(
        subject="M3 other than Ultra",
        generation="M3",
        not_chip="Apple M3 Ultra",
        settle="a governed pairing on an M3, M3 Pro or M3 Max host",
    ),
    Want(subject="M4, any", generation="M4", settle="a governed pairing on any M4 host"),
    Want(
        subject="M5 Max, Gemma 4 31B, exact path under the guarded protocol",
        generation="M5",
        chip="Apple M5 Max",
        pairing=_G31,
        guarded=True,
        exact=True,
        settle=f"{_RUN}: the exact rows there are come from a drifting fast-test build",
    ),
    Want(
        subject="M5 other than Max",
        generation="M5",
        not_chip="Apple M5 Max",
        settle="a governed pairing on an M5 or M5 Pro host",
    ),
)
"""Rows that the founding document asks for, and generations or variants without any."""


def audit(
    records: Iterable[Record],
    version: int = ROUND_LOOP_VERSION,
    wanted: Iterable[Want] = WANTED,
) -> tuple[Finding, ...]:
    """List what is weak in the evidence.

    Parameters
    ----------
    records : iterable of Record
        All evidence.
    version : int
        Current version of the round loop: measured records of an older one are stale.
    wanted : iterable of Want
        Evidence that there should be; stale records do not meet it.

    Returns
    -------
    tuple of Finding
        By kind, in the order of `FindingKind`.
    """
    known = tuple(records)
    matrix = decide(known, version)
    return (
        *_ages(known, version),
        *_inferred(matrix),
        *_single_runs(known),
        *_spreads(known),
        *_unpublishable(known),
        *_widths(known),
        *_conflicts(matrix),
        *_missing([r for r in known if staleness(r, version) != "stale"], wanted),
    )


def _name(record: Record) -> str:
    return f"{record.host.chip}, {record.pairing.name}"


def _ages(records: tuple[Record, ...], version: int) -> Iterator[Finding]:
    ages = {record.id: staleness(record, version) for record in records}
    changes = f"{LOOP_CHANGES[0]} to {LOOP_CHANGES[-1]}"
    for kind in ("stale", "undated"):
        for record in (record for record in records if ages[record.id] == kind):
            newer = [r.id for r in records if _name(r) == _name(record) and ages[r.id] == "current"]
            settle = f"current already: {', '.join(newer)}" if newer else "measure it again"
            if kind == "undated":
                message = f"no date in the source; whether {changes} were in is not known"
            elif isinstance(record.round_loop, int):
                message = f"taken with round loop {record.round_loop}, now it is {version}"
            else:
                message = f"of {record.date}, before all of {changes} were in"
            yield Finding(
                kind="stale" if kind == "stale" else "undated",
                subject=_name(record),
                evidence=(record.id,),
                message=message,
                settle=settle,
            )


def _inferred(matrix: Matrix) -> Iterator[Finding]:
    for subject in matrix.subjects:
        if subject.verdict in ("inferred", "no evidence"):
            yield Finding(
                kind="inferred",
                subject=subject.name,
                evidence=tuple(record for record, _ in subject.evidence),
                message=subject.why,
                settle=f"a governed pairing on any {subject.name} host",
            )


def _single_runs(records: tuple[Record, ...]) -> Iterator[Finding]:
    for record in records:
        if record.protocol in _SHORT_PROTOCOLS:
            yield Finding(
                kind="single-run",
                subject=_name(record),
                evidence=(record.id,),
                message=f"protocol {record.protocol}: {_SHORT_PROTOCOLS[record.protocol]}",
                settle="the same cells under the guarded protocol",
            )


def _spread(row: Row) -> float:
    """The larger spread of both arms, as given or from the samples; 0 where it is not known."""
    arms = [samples for samples in (row.classic_samples, row.speculative_samples) if samples]
    return max([row.spread_percent or 0.0, *map(spread_percent, arms)])


def _spreads(records: tuple[Record, ...]) -> Iterator[Finding]:
    for record in records:
        wide = [row for row in record.rows if _spread(row) > SPREAD_LIMIT_PERCENT]
        if wide:
            cells = ", ".join(
                f"{row.prompt or 'prompt not named'} at width {row.width}: {_spread(row):.1f} %"
                for row in wide
            )
            yield Finding(
                kind="spread",
                subject=_name(record),
                evidence=(record.id,),
                message=f"{cells}; the limit is {SPREAD_LIMIT_PERCENT:g} %",
                settle="the same cells on a quiet host",
            )


def _unpublishable(records: tuple[Record, ...]) -> Iterator[Finding]:
    for record in records:
        broken = [row for row in record.rows if row.publishable is False]
        if broken:
            cells = "; ".join(
                f"{row.prompt} at width {row.requested_width}: {', '.join(row.reasons or ())}"
                for row in broken
            )
            yield Finding(
                kind="unpublishable",
                subject=_name(record),
                evidence=(record.id,),
                message=cells,
                settle="the same cells again, with every limit kept",
            )


def _widths(records: tuple[Record, ...]) -> Iterator[Finding]:
    narrower: dict[str, list[Reading]] = {}
    for reading in readings(records):
        width, mean = reading.row.width, reading.mean_width
        if width is not None and mean is not None and width - mean > _WIDTH_GAP:
            narrower.setdefault(reading.record.id, []).append(reading)
    for name, found in narrower.items():
        cells = ", ".join(f"{r.row.width} ran as {r.mean_width:.2f}" for r in found)
        yield Finding(
            kind="width",
            subject=_name(found[0].record),
            evidence=(name,),
            message=f"by acceptance and emitted tokens, width {cells} on average",
            settle="widths pinned, with the effective width in every row; until then a fit over "
            "the stated widths has too small a slope",
        )


def _conflicts(matrix: Matrix) -> Iterator[Finding]:
    for conflict in conflicts(matrix):
        sides = [
            f"{word} " + ", ".join(f"{case.speedup:.2f}x ({case.exactness})" for case in cases)
            for word, cases in (("gains", conflict.gains), ("losses", conflict.losses))
        ]
        cases = (*conflict.losses, *conflict.gains)
        yield Finding(
            kind="conflict",
            subject=f"{conflict.subject}, {conflict.pairing}",
            evidence=tuple(dict.fromkeys(case.record for case in cases)),
            message="; ".join(sides),
            settle="the guarded protocol on the path that is served",
        )


def _missing(records: list[Record], wanted: Iterable[Want]) -> Iterator[Finding]:
    for want in wanted:
        if not any(want.met_by(record) for record in records):
            yield Finding(
                kind="missing",
                subject=want.subject,
                evidence=(),
                message="no current record",
                settle=want.settle,
            )
