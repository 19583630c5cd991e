"""The founding document's decision matrix, derived from the evidence.

Only governed pairings (batch-capable target, MTP drafter) decide. Of a pairing on a generation,
current records outrank stale ones and exact-path rows outrank all others; what is outranked is
kept beside the verdict, never dropped. Of one prompt in one record the best width counts, since
a width is chosen, by the controller or by the drafter's declaration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.readings import Reading, Staleness, readings, staleness
from mlxcel.decide.records import EXACT_FORMS, ROUND_LOOP_VERSION, Exactness, Record

__all__ = [
    "KERNEL_CLASSES",
    "Branch",
    "Case",
    "Cell",
    "CellVerdict",
    "Matrix",
    "SetAside",
    "Subject",
    "decide",
]

CellVerdict = Literal["measured gain", "measured loss", "mixed", "inferred", "no evidence"]
BranchName = Literal["generation-discriminator", "enable-everywhere", "keep", "undecided"]

KERNEL_CLASSES: Mapping[str, str] = {
    "M1": "narrow",
    "M2": "narrow",
    "M3": "wide",
    "M4": "wide",
    "M5": "wide",
}
"""Form of the quantized projection at two and more rows: GPU generation 15 and later run one
wide pass, 13 one pass per row (founding document, "Why the founding evidence is stale", point
3). A generation without measurement inherits what its class was measured to do."""

_PRIMARY = "Gemma 4 31B"
"""The pairing that the founding document's second branch asks about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt of one record, at its best width.

    ``speedup`` is speculative over classic speed; ``width`` and ``prompt`` are ``None`` where
    the source does not name them.
    """

    record: str
    date: str | None
    chip: str
    prompt: str | None
    width: int | None
    speedup: float
    exactness: Exactness
    age: Staleness


@dataclass(frozen=True, slots=True)
class SetAside:
    """A case that does not decide, with the reason; ``conflicts``: some deciding case has the
    other sign."""

    case: Case
    reason: str
    conflicts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One pairing on one generation.

    Attributes
    ----------
    subject, pairing : str
        Generation (or chip, where there is none) and name of the pairing.
    verdict : str
        ``mixed`` when some deciding cases gain and some lose.
    supports : bool or None
        What the static gate should say: of mixed cases their geometric mean decides.
    typical : float or None
        Geometric mean of the deciding speed-ups.
    deciding, set_aside : tuple
        Cases that decide, and the others.
    """

    subject: str
    pairing: str
    verdict: CellVerdict
    supports: bool | None
    typical: float | None
    deciding: tuple[Case, ...]
    set_aside: tuple[SetAside, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """All pairings on one generation: the verdict that the gate's table is compared with.

    ``evidence`` holds the ids and dates of what decides, for an inferred verdict that of the
    measured generations of the same kernel class.
    """

    name: str
    verdict: CellVerdict
    supports: bool | None
    why: str
    evidence: tuple[tuple[str, str | None], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """The branch of the decision matrix that the evidence supports."""

    name: BranchName
    why: str
    evidence: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Verdicts of all generations and of other measured hosts, and the branch."""

    subjects: tuple[Subject, ...]
    branch: Branch

    def subject(self, name: str) -> Subject | None:
        """The verdict of a generation or chip, if there is one."""
        return next((s for s in self.subjects if s.name == name), None)


def decide(records: Iterable[Record], version: int = ROUND_LOOP_VERSION) -> Matrix:
    """Derive the matrix.

    Parameters
    ----------
    records : iterable of Record
        All evidence; records of pairings that the gate does not govern are ignored, and so are
        rows that their own protocol marks as not to be published.
    version : int
        Current version of the round loop.
    """
    governed = [
        reading
        for reading in readings(records)
        if reading.record.pairing.governed
        and reading.speedup is not None
        and reading.row.publishable is not False
    ]
    cases: dict[str, dict[str, list[Case]]] = {name: {} for name in KERNEL_CLASSES}
    for reading, group in _groups(governed):
        by_pairing = cases.setdefault(reading.record.host.subject, {})
        by_pairing.setdefault(reading.record.pairing.name, []).append(_case(group, version))
    pairings = sorted({reading.record.pairing.name for reading in governed})
    measured = {
        name: [_cell(name, pairing, own[pairing]) for pairing in pairings if pairing in own]
        for name, own in cases.items()
    }
    subjects = tuple(
        _measured(name, cells) if cells else _inferred(name, measured)
        for name, cells in measured.items()
    )
    return Matrix(subjects, _branch({subject.name: subject for subject in subjects}))


def _groups(governed: list[Reading]) -> Iterable[tuple[Reading, list[Reading]]]:
    """Rows of one prompt in one record; a row without a prompt stands alone."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for number, reading in enumerate(governed):
        prompt = reading.row.prompt or f"row {number}"
        groups.setdefault((reading.record.id, prompt), []).append(reading)
    return [(group[0], group) for group in groups.values()]


def _case(group: list[Reading], version: int) -> Case:
    best = max(group, key=_speedup)
    record = best.record
    return Case(
        record=record.id,
        date=record.date,
        chip=record.host.chip,
        prompt=best.row.prompt,
        width=best.row.width,
        speedup=_speedup(best),
        exactness=record.exactness,
        age=staleness(record, version),
    )


def _speedup(reading: Reading) -> float:
    return reading.speedup or 0.0


def _cell(subject: str, pairing: str, cases: list[Case]) -> Cell:
    """Rank the cases of one pairing, and judge by the best rank."""

    def rank(case: Case) -> tuple[bool, bool]:
        return case.age != "stale", case.exactness in EXACT_FORMS

    best = max(map(rank, cases))
    deciding = tuple(case for case in cases if rank(case) == best)
    gains = [case.speedup > 1 for case in deciding]
    typical = math.exp(math.fsum(math.log(case.speedup) for case in deciding) / len(deciding))
    verdict: CellVerdict = "mixed"
    if all(gains) or not any(gains):
        verdict = "measured gain" if gains[0] else "measured loss"
    return Cell(
        subject=subject,
        pairing=pairing,
        verdict=verdict,
        supports=typical > 1,
        typical=typical,
        deciding=deciding,
        set_aside=tuple(
            SetAside(case, _reason(case, best), (case.speedup <= 1) in gains)
            for case in cases
            if rank(case) != best
        ),
    )


def _reason(case: Case, best: tuple[bool, bool]) -> str:
    if case.age == "stale" and best[0]:
        return "stale: the round loop has changed since"
    return "outranked by rows taken on the exact path"


def _ids(cells: Iterable[Cell]) -> tuple[tuple[str, str | None], ...]:
    return tuple(dict.fromkeys((case.record, case.date) for c in cells for case in c.deciding))


def _measured(name: str, cells: list[Cell]) -> Subject:
    verdicts = {cell.verdict for cell in cells}
    answers = {cell.supports for cell in cells}
    parts = []
    for cell in cells:
        speeds = [case.speedup for case in cell.deciding]
        low, high = f"{min(speeds):.2f}", f"{max(speeds):.2f}"
        part = f"{cell.pairing}: {cell.verdict}, {low}x" + (f" to {high}x" if low != high else "")
        conflicts = sum(item.conflicts for item in cell.set_aside)
        parts.append(part + (f", {conflicts} outranked to the contrary" if conflicts else ""))
    return Subject(
        name=name,
        verdict=verdicts.pop() if len(verdicts) == 1 else "mixed",
        supports=answers.pop() if len(answers) == 1 else None,
        why="; ".join(parts),
        evidence=_ids(cells),
        cells=tuple(cells),
    )


def _inferred(name: str, measured: Mapping[str, list[Cell]]) -> Subject:
    """What the measured generations of the same kernel class agree on."""
    kernel = KERNEL_CLASSES.get(name)
    peers = [n for n, cells in measured.items() if cells and KERNEL_CLASSES.get(n) == kernel]
    cells = [cell for peer in peers for cell in measured[peer]]
    answers = {cell.supports for cell in cells}
    pairings = sorted({cell.pairing for cell in cells})
    agreed = answers.pop() if len(answers) == 1 else None
    why = f"not measured; {', '.join(peers)} with the same {kernel} projections "
    why += "disagree" if agreed is None else ("gain" if agreed else "lose")
    return Subject(
        name=name,
        verdict="no evidence" if agreed is None else "inferred",
        supports=agreed,
        why=why if peers else f"not measured, nor any generation with {kernel} projections",
        evidence=_ids(cells),
        cells=tuple(
            Cell(
                subject=name,
                pairing=pairing,
                verdict="no evidence" if agreed is None else "inferred",
                supports=agreed,
                typical=None,
                deciding=(),
                set_aside=(),
            )
            for pairing in pairings
        ),
    )


def _branch(subjects: Mapping[str, Subject]) -> Branch:
    """The founding document's three branches; it asks about M3 Ultra and M1 Ultra."""
    m1, m3 = subjects["M1"], subjects["M3"]
    # The second branch asks about one pairing only.
    primary = next((c for c in m1.cells if c.pairing == _PRIMARY and c.deciding), None)
    m1_gains = primary.supports if primary else None
    evidence = m3.evidence + m1.evidence
    why = f"M3: {m3.why}. M1: {m1.why}."
    if m1_gains and m3.supports:
        return Branch("enable-everywhere", f"Both generations gain. {why}", evidence)
    if m3.verdict != "inferred" and m3.supports:
        return Branch(
            "generation-discriminator",
            f"M3 gains, M1 does not: the GPU generation, from 15 on, is what decides. {why}",
            evidence,
        )
    if m1.supports is False and m3.supports is False and "inferred" not in (m1.verdict, m3.verdict):
        return Branch("keep", f"Neither generation gains: the gate stays. {why}", evidence)
    return Branch("undecided", f"No branch covers this. {why}", evidence)
