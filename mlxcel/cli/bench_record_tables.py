"""Tables of ``mlxcel bench compare``, ``predict`` and ``submit`` for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mlxcel.cli.tables import coloured, heading, make_console, make_table, stacked
from mlxcel.decide.audit import Finding
from mlxcel.decide.comparison import P_LIMIT, Change
from mlxcel.decide.matrix import Subject
from mlxcel.decide.prediction import Prediction
from mlxcel.decide.records import Record
from mlxcel.decide.submission import Effect

__all__ = ["show_changes", "show_effect", "show_prediction"]

_STYLES = {"faster": "green", "slower": "red"}


def show_changes(
    first: Mapping[str, Any], second: Mapping[str, Any], changes: Sequence[Change]
) -> None:
    """Show what became faster or slower.

    Parameters
    ----------
    first, second : mapping
        JSON values of the records.
    changes : sequence of Change
        Both arms of every row.
    """
    console = make_console()
    console.print(heading(f"{second['id']} against {first['id']}"))
    for name, record in (("first", first), ("second", second)):
        provenance = record["provenance"]
        commit = (provenance["commit"] or "no commit known")[:12]
        dirty = ", with changes" if provenance["dirty"] else ""
        told = f"{name}: {provenance['started']}, {commit}{dirty}"
        console.print(Padding(Text(told, style="dim"), (0, 0, 0, 2)))
    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    table = make_table(
        ("row", {"min_width": 14}), "arm", ("tok/s", right), ("ratio", right), ("95 %", right),
        ("p", right), "verdict",
    )  # fmt: skip
    for change in changes:
        table.add_row(
            _cell(change),
            change.arm,
            f"{change.first_tok_s:.1f} > {change.second_tok_s:.1f}",
            f"{change.ratio:.3f}",
            "" if change.interval is None else "{:.3f}-{:.3f}".format(*change.interval),
            f"{change.p:.2g}",
            Text(change.verdict, style=_STYLES.get(change.verdict, "")),
        )
    console.print(Padding(table, (1, 0, 1, 0)))
    for note in _notes(changes):
        console.print(Padding(note, (0, 0, 0, 2)))
    counts = ", ".join(
        f"{sum(change.verdict == word for change in changes)} {word}"
        for word in ("faster", "slower", "undecided")
    )
    console.print(
        f"{counts}. Rows are prompt/tokens/width; p is of the exact rank test, the limit is "
        f"{P_LIMIT:g}. A classic arm that moves as the other does tells of the host."
    )


def _cell(change: Change) -> str:
    return f"{change.prompt}/{change.tokens}/{change.width}"


def _notes(changes: Sequence[Change]) -> list[str]:
    """What the figures of the table do not say by themselves, each once."""
    notes = []
    for change in changes:
        if change.verdict == "undecided" and (change.p <= P_LIMIT or change.interval is None):
            notes.append(f"{_cell(change)} {change.arm}: {change.why}")
        notes += [f"{_cell(change)}: {text}" for text in change.caveats]
    return list(dict.fromkeys(notes))


def show_prediction(made: Prediction, path: Path | None) -> None:
    """Show a prediction, and where it was written."""
    console = make_console()
    console.print(heading(made.id))
    console.print(Padding(made.statement, (0, 0, 1, 2)))
    for quantity in made.quantities:
        span = f"{quantity.low:.2f}"
        span += f" to {quantity.high:.2f}" if quantity.high != quantity.low else ""
        name = quantity.name.replace("_", " ")
        console.print(Padding(f"{name}: {span} +/- {quantity.tolerance:.2f}", (0, 0, 0, 2)))
    console.print(Padding(Text(made.basis, style="dim"), (1, 0, 1, 2)))
    if made.notes:
        console.print(Padding(made.notes, (0, 0, 1, 2)))
    console.print(Padding(f"to settle it: {made.settled_by}", (0, 0, 1, 2)))
    console.print("Nothing was written." if path is None else f"Written to {path}.")


def show_effect(record: Record, effect: Effect, path: Path | None) -> None:
    """Show what a record changes, and where it was copied to."""
    console = make_console()
    console.print(heading(f"{record.id}: {record.host.chip}, {record.pairing.name}"))
    console.print(Padding(_publishable(record), (0, 0, 1, 2)))
    _show_subjects(console, record, effect)
    _show_findings(console, "settled by it", effect.settled)
    _show_findings(console, "weak in it", effect.opened)
    for item in effect.judged:
        console.print(Text.assemble(f"prediction {item.prediction}: ", coloured(item.verdict)))
        console.print(Padding(item.why, (0, 0, 1, 2)))
    for difference in effect.disagreements:
        told = f"gate decide then disagrees ({difference.kind}) on {difference.subject}: "
        console.print(Text(told + difference.message, style="red"))
    if not effect.disagreements:
        console.print("The gate's table and the recorded decision still agree with the evidence.")
    console.print("Nothing was copied." if path is None else f"Copied to {path}.")


def _publishable(record: Record) -> str:
    """How many rows keep the limits of the protocol; only rows with raw samples say so."""
    marks = [getattr(row, "publishable", None) for row in record.rows]
    if not record.rows:
        return "times of passes only, no rows"
    if None in marks:
        return f"{len(marks)} rows"
    return f"{len(marks)} rows, {sum(map(bool, marks))} of them publishable"


def _show_subjects(console: Console, record: Record, effect: Effect) -> None:
    before, after = effect.branch
    same = f"{after}, as before" if before == after else f"{after}, before it was {before}"
    console.print(f"branch of the decision matrix: {same}")
    if not effect.subjects:
        ruled = "governs" if record.pairing.governed else "does not govern"
        console.print(f"No verdict changes; the gate {ruled} this pairing.\n")
        return
    table = make_table("about", ("before", {"ratio": 1}), ("after", {"ratio": 1}))
    for item in effect.subjects:
        table.add_row(item.name, _subject(item.before), _subject(item.after))
    console.print(Padding(table, (0, 0, 1, 2)))


def _subject(subject: Subject | None) -> Text:
    if subject is None:
        return Text("no evidence")
    return stacked(coloured(subject.verdict), Text(subject.why, style="dim"))


def _show_findings(console: Console, title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print(heading(f"{title} ({len(findings)})"))
    for item in findings:
        told = f"{item.kind}: {item.subject}: {item.message}"
        console.print(Padding(told, (0, 0, 0, 2)))
    console.print()
