"""Which evidence speaks about a host and a pairing; helper of `mlxcel.decide.explain`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlxcel.decide.chips import Chip
from mlxcel.decide.matrix import KERNEL_CLASSES, Matrix, decide
from mlxcel.decide.readings import Reading, readings
from mlxcel.decide.records import Record

__all__ = ["Cited", "Dated", "cite", "dated"]

Dated = tuple[str, str | None]
"""Id of a record and its date, ``None`` where the source gives none."""

_NVIDIA = "NVIDIA"


@dataclass(frozen=True, slots=True)
class Cited:
    """What the evidence says, in a few words and in a sentence, with ids and dates."""

    outcome: str
    reason: str
    evidence: tuple[Dated, ...]


def dated(ids: Iterable[str], records: Sequence[Record]) -> tuple[Dated, ...]:
    """Ids with the dates of their records."""
    dates = {record.id: record.date for record in records}
    return tuple((name, dates.get(name)) for name in ids)


def cite(chip: Chip, batch_capable: bool, pairing: str | None, records: Sequence[Record]) -> Cited:
    """Cite what there is about a chip.

    Parameters
    ----------
    chip : Chip
        The host.
    batch_capable : bool
        Whether the target can batch: verdicts of the decision matrix are about those only.
    pairing : str or None
        Name of a pairing in the evidence; ``None`` for all.
    records : sequence of Record
        All evidence.

    Returns
    -------
    Cited
        Records of the host's generation; for a host without any, those of the nearest
        one, marked as not used.
    """
    if not batch_capable:
        return _unbatched(chip, pairing, records)
    matrix = decide(records)
    subject = matrix.subject(chip.generation or chip.name)
    if subject is None:
        return _nearest(chip, matrix)
    cell = next((cell for cell in subject.cells if cell.pairing == pairing), None)
    if cell is None or not cell.deciding:
        other = f"; nothing on {pairing} itself" if pairing and cell is None else ""
        return Cited(subject.verdict, subject.why + other, subject.evidence)
    own = tuple(dict.fromkeys((case.record, case.date) for case in cell.deciding))
    aside = tuple(dict.fromkeys((item.case.record, item.case.date) for item in cell.set_aside))
    speeds = ", ".join(f"{case.speedup:.2f}x" for case in cell.deciding)
    reason = f"{cell.pairing} on {subject.name}: {speeds}"
    if aside:
        reason += f"; set aside: {', '.join(name for name, _ in aside)}"
    return Cited(cell.verdict, reason, own)


def _unbatched(chip: Chip, pairing: str | None, records: Sequence[Record]) -> Cited:
    """Rows of targets that cannot batch: shown beside the decision, which they do not make."""
    rows = [
        reading
        for reading in readings(records)
        if reading.record.pairing.batch_capable is False
        and reading.record.pairing.kind == "mtp"
        and pairing in (None, reading.record.pairing.name)
        and reading.speedup is not None
    ]
    own = chip.generation or chip.name
    subjects = {reading.record.host.subject for reading in rows}
    if own in subjects:
        outcome, reason, evidence = _range(rows, {own})
        return Cited(outcome, f"{reason}; the gate does not decide by them", evidence)
    near = _peers(chip, subjects)
    nothing = "no row of a target that cannot batch is of such a host"
    if not near:
        return Cited("none", nothing, ())
    outcome, reason, evidence = _range(rows, near)
    return Cited("none", f"{nothing}; for orientation only, {outcome} in {reason}", evidence)


def _range(rows: Sequence[Reading], subjects: set[str]) -> tuple[str, str, tuple[Dated, ...]]:
    """Lowest and highest speed-up, what they are of, and the records."""
    own = [reading for reading in rows if reading.record.host.subject in subjects]
    speeds = [reading.speedup for reading in own if reading.speedup is not None]
    names = dict.fromkeys(f"{r.record.pairing.name} on {r.record.host.subject}" for r in own)
    return (
        f"{min(speeds):.2f}x to {max(speeds):.2f}x",
        f"{len(own)} rows of {', '.join(names)}",
        tuple(dict.fromkeys((reading.record.id, reading.record.date) for reading in own)),
    )


def _peers(chip: Chip, subjects: Iterable[str]) -> set[str]:
    """Measured hosts that are nearest to one without rows of its own."""
    if chip.status == "newer":
        return {max(KERNEL_CLASSES)} & set(subjects)
    if chip.name.startswith(_NVIDIA):
        return {name for name in subjects if name.startswith(_NVIDIA)}
    kernel = KERNEL_CLASSES.get(chip.generation)
    return {name for name in subjects if kernel and KERNEL_CLASSES.get(name) == kernel}


def _nearest(chip: Chip, matrix: Matrix) -> Cited:
    """Nothing about this host: the nearest one for orientation, never as a reason."""
    nothing = "no record is of such a host"
    measured = [subject.name for subject in matrix.subjects if subject.evidence]
    peers = _peers(chip, measured)
    near = [subject for subject in matrix.subjects if subject.name in peers]
    if not near:
        return Cited("none", nothing, ())
    words = "; ".join(f"{subject.name}: {subject.why}" for subject in near)
    evidence = dict.fromkeys(item for subject in near for item in subject.evidence)
    return Cited("none", f"{nothing}; for orientation only, {words}", tuple(evidence))
