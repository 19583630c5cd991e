"""Tables of ``mlxcel gate`` for people: what a command found, written to standard output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlxcel.cli.tables import (
    cited,
    coloured,
    decimal,
    heading,
    make_console,
    make_table,
    stacked,
)
from mlxcel.decide.agreement import Decision, Disagreement, conflicts
from mlxcel.decide.audit import Finding
from mlxcel.decide.chips import GATE_TABLE, GENERATIONS
from mlxcel.decide.explain import Explanation, Step
from mlxcel.decide.matrix import Case, Matrix, Subject
from mlxcel.decide.prediction import Judgement, Outcome, Prediction
from mlxcel.decide.readings import Reading, staleness
from mlxcel.decide.records import Record

__all__ = [
    "show_evidence",
    "show_explanation",
    "show_findings",
    "show_matrix",
    "show_predictions",
]

# -- evidence ---------------------------------------------------------------------------


def show_evidence(
    chosen: Sequence[Record], rows: Sequence[Reading], every: Sequence[Record]
) -> None:
    """Show rows by record.

    Parameters
    ----------
    chosen : sequence of Record
        Records that the filters left.
    rows : sequence of Reading
        Their rows.
    every : sequence of Record
        All records, to name hosts and pairings where nothing was left.
    """
    console = make_console()
    if not rows:
        hosts = ", ".join(sorted({record.host.chip for record in every}))
        pairings = ", ".join(sorted({record.pairing.name for record in every}))
        console.print(f"No row matches. Hosts: {hosts}. Pairings: {pairings}.")
        return
    for record in chosen:
        own = [row for row in rows if row.record is record or row.record.id == record.id]
        if own:
            console.print(_record_head(record))
            console.print(Padding(_rows(own), (0, 0, 1, 2)))
    shown = {row.record.id for row in rows}
    published = sum(row.record.origin == "published" for row in rows)
    console.print(
        f"{len(rows)} rows of {len(shown)} records: {len(rows) - published} measured here (M), "
        f"{published} published elsewhere (P). Speeds in tokens per second, cost in "
        "classic steps; width is asked/ran where both are known."
    )
    timed = len(chosen) - len(shown)
    if timed:
        console.print(f"{timed} more records hold times of stages only: docs/benchmarks.md.")


def _record_head(record: Record) -> Text:
    ruled = "governed" if record.pairing.governed else "not governed"
    facts = (
        f"{record.origin} {record.date or 'undated'}, {staleness(record)}, "
        f"{record.protocol}, {record.exactness}, {ruled} by the gate"
    )
    title = f"{record.host.chip}, {record.pairing.name}  {record.id}"
    return stacked(heading(title), Text(f"  {facts}", style="dim"))


def _rows(own: Sequence[Reading]) -> Table:
    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    # Fixed, so that the tables of all records are in line; 80 columns in all.
    numbers = {"width": 5, "accept": 6, "emit": 5, "classic": 7, "spec": 6, "gain": 5, "cost": 5}
    table = make_table(
        ("", {"no_wrap": True}),
        ("prompt", {"min_width": 14}),
        *((name, {**right, "min_width": width}) for name, width in numbers.items()),
        ("spread", right),
    )
    for reading in own:
        row = reading.row
        asked, ran = row.requested_width, row.effective_width
        width = str(asked or "") if ran is None else f"{asked or '?'}/{ran}"
        table.add_row(
            "M" if reading.record.origin == "measured" else "P",
            row.prompt or "",
            width,
            decimal(reading.acceptance, 3),
            decimal(row.emitted_per_verify, 2),
            decimal(reading.classic_tok_s, 1),
            decimal(row.speculative_tok_s, 1),
            decimal(reading.speedup, 2, "x"),
            decimal(reading.round_cost, 2),
            decimal(row.spread_percent, 1, "%"),
        )
    return table


# -- decide -----------------------------------------------------------------------------


def show_matrix(matrix: Matrix, decision: Decision, differences: Sequence[Disagreement]) -> None:
    """Show the branch, the verdicts, conflicts side by side, and whether all agree."""
    console = make_console()
    console.print(heading(f"Branch: {matrix.branch.name}"))
    console.print(Padding(matrix.branch.why, (0, 0, 1, 2)))
    table = make_table("host", "evidence", "says", "table", ("because", {"ratio": 1}))
    for subject in matrix.subjects:
        table.add_row(
            subject.name,
            coloured(subject.verdict),
            coloured(_says(subject.supports)),
            _entry(subject),
            stacked(subject.why, cited(subject.evidence)),
        )
        table.add_section()
    console.print(table)
    _show_conflicts(console, matrix)
    _show_agreement(console, decision, differences)


def _says(value: bool | None) -> str:
    return "open" if value is None else ("on" if value else "off")


def _entry(subject: Subject) -> Text:
    """What the gate's table says and what the entry rests on; nothing for other hosts."""
    entry = GENERATIONS.get(subject.name)
    if entry is None:
        return Text("")
    return stacked(coloured(_says(GATE_TABLE[subject.name])), Text(entry.basis, style="dim"))


def _show_conflicts(console: Console, matrix: Matrix) -> None:
    deciding = {id(case) for s in matrix.subjects for c in s.cells for case in c.deciding}
    for conflict in conflicts(matrix):
        console.print(heading(f"\nConflict: {conflict.subject}, {conflict.pairing}"))
        table = make_table(("gains", {"ratio": 1}), ("losses", {"ratio": 1}))
        table.add_row(_side(conflict.gains, deciding), _side(conflict.losses, deciding))
        console.print(Padding(table, (0, 0, 0, 2)))


def _side(cases: Sequence[Case], deciding: set[int]) -> Text:
    """One side of a conflict, by record."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.record, []).append(case)
    parts: list[str | Text] = []
    for name, own in groups.items():
        case = own[0]
        rank = "decides" if id(case) in deciding else f"set aside ({case.age})"
        speeds = ", ".join(f"{item.speedup:.2f}x" for item in own)
        parts.append(f"{speeds}: {case.exactness}, {rank}")
        parts.append(cited([(name, case.date)]))
    return stacked(*parts)


def _show_agreement(
    console: Console, decision: Decision, differences: Sequence[Disagreement]
) -> None:
    made = f"the decision of {decision.made_on} (round loop {decision.round_loop})"
    if not differences:
        console.print(Text(f"\nThe gate's table and {made} agree with the evidence.", "green"))
        return
    console.print(Text(f"\nThe evidence disagrees with the gate's table or {made}:", "bold red"))
    table = make_table("what", "kind", ("how", {"ratio": 1}))
    for item in differences:
        table.add_row(item.subject, item.kind, stacked(item.message, cited(item.evidence)))
    console.print(table)


# -- audit and predictions --------------------------------------------------------------


def show_findings(findings: Sequence[Finding]) -> None:
    """Show what is weak, by kind."""
    console = make_console()
    kinds = dict.fromkeys(finding.kind for finding in findings)
    for kind in kinds:
        own = [finding for finding in findings if finding.kind == kind]
        console.print(heading(f"{kind} ({len(own)})"))
        table = make_table(
            ("about", {"ratio": 2}), ("found, and what would settle it", {"ratio": 3})
        )
        for finding in own:
            about = stacked(finding.subject, Text("\n".join(finding.evidence), style="dim"))
            table.add_row(about, stacked(finding.message, Text(f"> {finding.settle}", "italic")))
        console.print(Padding(table, (0, 0, 1, 2)))
    counts = ", ".join(f"{sum(f.kind == kind for f in findings)} {kind}" for kind in kinds)
    console.print(f"{len(findings)} findings: {counts}." if findings else "Nothing is weak.")


def show_predictions(judged: Sequence[tuple[Prediction, Judgement]]) -> None:
    """Show every prediction with what later rows made of it."""
    console = make_console()
    for item, found in judged:
        firm = "" if found.firm or found.verdict == "open" else " (not firm)"
        console.print(Text.assemble(heading(f"{item.id}: "), coloured(found.verdict), firm))
        console.print(Padding(item.statement, (0, 0, 0, 2)))
        by = f"by {item.by}, {item.made_on}, {item.address}"
        console.print(Padding(Text(by, style="dim"), (0, 0, 1, 2)))
        console.print(Padding(_outcomes(item, found), (0, 0, 1, 2)))
        for caveat in dict.fromkeys(c for outcome in found.outcomes for c in outcome.caveats):
            console.print(Padding(f"not what it asked for: {caveat}", (0, 0, 0, 2)))
        console.print(Padding(f"to settle it: {item.settled_by}", (0, 0, 1, 2)))


def _outcomes(item: Prediction, found: Judgement) -> Table:
    right = {"justify": "right", "no_wrap": True}
    table = make_table("quantity", "predicted", "verdict", ("found", right), "off by", "record")
    verdicts = dict(found.by_quantity)
    for quantity in item.quantities:
        span = f"{quantity.low:g}"
        span += f" to {quantity.high:g}" if quantity.high != quantity.low else ""
        span += f" +/- {quantity.tolerance:g}" if quantity.tolerance else ""
        own = [outcome for outcome in found.outcomes if outcome.quantity == quantity.name]
        name, verdict = quantity.name.replace("_", " "), coloured(verdicts[quantity.name])
        if not own:
            table.add_row(name, span, verdict, "", "", "no later row")
        for number, outcome in enumerate(own):
            first = (name, span, verdict) if number == 0 else ("", "", "")
            record = cited([(outcome.record, outcome.date)])
            table.add_row(*first, f"{outcome.value:.2f}", _off(outcome), record)
    return table


def _off(outcome: Outcome) -> str:
    if outcome.within:
        return "inside"
    return f"{abs(outcome.off_by):.2f} {'below' if outcome.off_by < 0 else 'above'}"


# -- explain -----------------------------------------------------------------


def show_explanation(found: Explanation) -> None:
    """Show a decision and its steps."""
    console = make_console()
    kind = "a batch-capable target" if found.batch_capable else "a target that cannot batch"
    says = coloured("run" if found.decision.run else "decline")
    console.print(Text.assemble(heading(f"{found.host}, {kind}: "), says))
    console.print(Padding(f"{found.decision.reason} ({found.decision.source})", (0, 0, 1, 2)))
    table = make_table(("", {"no_wrap": True}), "step", "outcome", ("why", {"ratio": 1}))
    for step in found.steps:
        table.add_row(*_step(step))
    console.print(table)
    console.print("\n> marks the step that decides, before anything is measured on the host.")


def _step(step: Step) -> tuple[str, str, Text, Text]:
    outcome = Text(step.outcome, style=coloured(step.outcome).style)
    why = stacked(step.reason, cited(step.evidence))
    return (">" if step.decides else "", step.name, outcome, why)
