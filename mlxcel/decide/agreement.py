"""Whether the gate's table and the decision taken still agree with the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide._fields import Fields
from mlxcel.decide.matrix import KERNEL_CLASSES, Case, Matrix
from mlxcel.decide.records import ROUND_LOOP_VERSION

__all__ = [
    "Conflict",
    "Decision",
    "Disagreement",
    "conflicts",
    "disagreements",
    "parse_decision",
]

DisagreementKind = Literal["contradicted", "undecided", "missing", "changed", "branch", "version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was last decided from the evidence, by a person, and for which round loop.

    Attributes
    ----------
    made_on : str
        ISO day.
    round_loop : int
        Version of the round loop that the evidence was looked through for.
    branch : str
        Branch of the decision matrix.
    verdicts : mapping of str to str
        Verdict of the evidence by generation.
    """

    made_on: str
    round_loop: int
    branch: str
    verdicts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One point in which table, decision and evidence differ.

    ``contradicted``: the table says the opposite. ``undecided``: the table has an entry, the
    evidence gives none. ``missing``: measured, but not in the table. ``changed``, ``branch``,
    ``version``: a verdict, the branch or the round loop is not what the decision was taken for.
    """

    kind: DisagreementKind
    subject: str
    message: str
    evidence: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Cases of one pairing on one generation that gain, beside those that lose."""

    subject: str
    pairing: str
    gains: tuple[Case, ...]
    losses: tuple[Case, ...]


def parse_decision(data: object, where: str = "decision") -> Decision:
    """Read the decision record.

    Raises
    ------
    LoadError
        A field that is missing, unknown or bad, with its place.
    """
    fields = Fields(data, where)
    decision = Decision(
        made_on=fields.day("made_on"),
        round_loop=fields.whole("round_loop", 1, 10**6),
        branch=fields.text("branch"),
        verdicts=dict(fields.table("verdicts")),
    )
    fields.close()
    return decision


def disagreements(
    matrix: Matrix,
    table: Mapping[str, bool],
    decision: Decision | None = None,
    version: int = ROUND_LOOP_VERSION,
) -> tuple[Disagreement, ...]:
    """Compare the evidence with the gate's table and with the decision behind it.

    Parameters
    ----------
    matrix : Matrix
        From `mlxcel.decide.matrix.decide`.
    table : mapping of str to bool
        Generation to whether batch-capable targets run the burst by default.
    decision : Decision, optional
        With it a changed verdict, branch or round-loop version is reported too, even where the
        table still stands.
    version : int
        Current version of the round loop.

    Returns
    -------
    tuple of Disagreement
        Empty when everything agrees.
    """
    found = [item for name, on in table.items() for item in _entry(matrix, name, on)]
    found += [
        Disagreement("missing", s.name, f"measured ({s.why}), but not in the table", s.evidence)
        for s in matrix.subjects
        if s.name in KERNEL_CLASSES and s.name not in table and s.cells
    ]
    if decision is not None:
        found += _decided(matrix, decision, version)
    return tuple(found)


def conflicts(matrix: Matrix) -> tuple[Conflict, ...]:
    """Every pairing on a generation with gains and losses, outranked cases included."""
    found = []
    for cell in (cell for subject in matrix.subjects for cell in subject.cells):
        cases = (*cell.deciding, *(item.case for item in cell.set_aside))
        gains = tuple(case for case in cases if case.speedup > 1)
        losses = tuple(case for case in cases if case.speedup <= 1)
        if gains and losses:
            found.append(Conflict(cell.subject, cell.pairing, gains, losses))
    return tuple(found)


def _entry(matrix: Matrix, name: str, on: bool) -> list[Disagreement]:
    subject = matrix.subject(name)
    if subject is None:
        return [Disagreement("undecided", name, "the evidence does not know this entry", ())]
    says = "on" if on else "off"
    if subject.supports is None:
        message = f"the table says {says}, the evidence does not decide: {subject.why}"
        return [Disagreement("undecided", name, message, subject.evidence)]
    if subject.supports != on:
        message = f"the table says {says}, the evidence the opposite: {subject.why}"
        return [Disagreement("contradicted", name, message, subject.evidence)]
    return []


def _decided(matrix: Matrix, decision: Decision, version: int) -> list[Disagreement]:
    found = []
    if decision.round_loop != version:
        message = (
            f"decided for round loop {decision.round_loop}, now it is {version}: measure again or "
            "confirm the decision"
        )
        found.append(Disagreement("version", "round loop", message, ()))
    branch = matrix.branch
    if decision.branch != branch.name:
        message = f"decided for {decision.branch}, now it is {branch.name}: {branch.why}"
        found.append(Disagreement("branch", "decision matrix", message, branch.evidence))
    derived = {subject.name: subject for subject in matrix.subjects}
    for name in sorted(derived.keys() | decision.verdicts.keys()):
        was = decision.verdicts.get(name, "no evidence")
        now = derived[name].verdict if name in derived else "no evidence"
        if was != now:
            evidence = derived[name].evidence if name in derived else ()
            message = f"decided on {was!r}, the evidence now says {now!r}"
            found.append(Disagreement("changed", name, message, evidence))
    return found
