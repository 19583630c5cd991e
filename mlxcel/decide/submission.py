"""What one more record would change: verdicts, the gate's table, weak points, predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlxcel.decide.agreement import Decision, Disagreement, disagreements
from mlxcel.decide.audit import Finding, audit
from mlxcel.decide.matrix import Matrix, Subject, decide
from mlxcel.decide.prediction import Judgement, Prediction, judge
from mlxcel.decide.records import Record
from mlxcel.errors import LoadError

__all__ = ["Effect", "SubjectChange", "effect_of", "refuse_known"]


@dataclass(frozen=True, slots=True)
class SubjectChange:
    """One generation or chip whose verdict, answer or evidence changes; ``None``: not known."""

    name: str
    before: Subject | None
    after: Subject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a record changes.

    Attributes
    ----------
    branch : (str, str)
        Branch of the decision matrix before and after.
    subjects : tuple of SubjectChange
        Generations and chips for which the gate would decide on something else.
    disagreements : tuple of Disagreement
        Where table and recorded decision differ from the evidence once it is added.
    settled, opened : tuple of Finding
        Weak points of the evidence that go away, and those that come.
    judged : tuple of Judgement
        Predictions on which its rows bear.
    """

    branch: tuple[str, str]
    subjects: tuple[SubjectChange, ...]
    disagreements: tuple[Disagreement, ...]
    settled: tuple[Finding, ...]
    opened: tuple[Finding, ...]
    judged: tuple[Judgement, ...]


def refuse_known(record: Record, records: Iterable[Record]) -> None:
    """Refuse a record that is there already, under its own or another id.

    Raises
    ------
    LoadError
        Names the record that it repeats.
    """
    for known in records:
        if known.id == record.id:
            raise LoadError(
                f"{record.id}: a record with this id is there already; rename the new one"
            )
        if dataclasses.replace(record, id=known.id) == known:
            raise LoadError(f"{record.id} is the record {known.id} under another id")


def effect_of(
    record: Record,
    records: Sequence[Record],
    *,
    table: Mapping[str, bool],
    decision: Decision,
    predictions: Iterable[Prediction] = (),
) -> Effect:
    """Derive everything without and with a record.

    Parameters
    ----------
    record : Record
        The new one.
    records : sequence of Record
        The evidence so far.
    table : mapping of str to bool
        The gate's table.
    decision : Decision
        What was last decided.
    predictions : iterable of Prediction
        Those that its rows may judge.
    """
    every = (*records, record)
    before, after = decide(records), decide(every)
    weak, still = audit(records), audit(every)
    judged = [judge(item, every) for item in predictions]
    return Effect(
        branch=(before.branch.name, after.branch.name),
        subjects=_changed(before, after),
        disagreements=disagreements(after, table, decision),
        settled=tuple(item for item in weak if item not in still),
        opened=tuple(item for item in still if item not in weak),
        judged=tuple(
            item for item in judged if any(out.record == record.id for out in item.outcomes)
        ),
    )


def _changed(before: Matrix, after: Matrix) -> tuple[SubjectChange, ...]:
    names = dict.fromkeys(subject.name for matrix in (before, after) for subject in matrix.subjects)
    changes = [SubjectChange(name, before.subject(name), after.subject(name)) for name in names]
    return tuple(item for item in changes if item.before != item.after)
