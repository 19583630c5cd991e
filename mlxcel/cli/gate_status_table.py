"""``mlxcel gate status`` for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from mlxcel.cli.tables import coloured, heading, make_console, make_table, stacked
from mlxcel.decide.gate import OVERRIDE
from mlxcel.decide.stored import Stored

if TYPE_CHECKING:
    from mlxcel.cli.gate_status import Status, Veto

__all__ = ["show_status"]

_DIGITS = 12  # of a fingerprint, where nobody said a name


def show_status(found: Status) -> None:
    """Show what is settled, what is forbidden, and one line for each damaged file."""
    console = make_console()
    if found.host:
        console.print(heading(f"{found.host}, {found.folder}"))
    if found.override is not None:
        word = "on" if found.override else "off"
        console.print(f"{OVERRIDE} is {word}: it outranks all of this but a veto.")
    if not found.adaptive:
        console.print("MLXCEL_MTP_ADAPTIVE is off: the static gate decides, not what is settled.")
    if not (found.pairings or found.vetoes):
        console.print(f"No pairing has settled yet (nothing in {found.folder}).")
    else:
        table = make_table("pairing", "width", "state", ("why", {"ratio": 1}))
        for item in found.pairings:
            table.add_row(*_row(item, found.host))
            table.add_section()
        for veto in found.vetoes:
            table.add_row(*_veto(veto))
            table.add_section()
        console.print(table)
    for file in found.damaged:
        console.print(f"{file.file}: {file.reason}", soft_wrap=True)


def _row(item: Stored, here: str) -> tuple[str | Text, ...]:
    key, names = item.key, item.names
    if key is None:
        return item.name, "", coloured(item.state), item.reason
    pairing = f"{names.target or key.target[:_DIGITS]} + {names.drafter or key.drafter[:_DIGITS]}"
    host = names.host or f"host {key.host[:_DIGITS]}"
    served = f"{key.weights}, {key.kernel}, {key.numerics}"
    dim = served if host == here else f"{served}\n{host}"
    return (
        stacked(pairing, Text(dim, style="dim")),
        str(key.width),
        coloured(item.state),
        stacked(item.reason, Text(_exactness(item), style="dim"), Text(_age(item), style="dim")),
    )


def _veto(veto: Veto) -> tuple[str | Text, ...]:
    return (
        stacked(f"{veto.target} + any drafter", Text(veto.weights, style="dim")),
        str(veto.width),
        coloured("vetoed"),
        f"the exactness probe declined: {veto.exactness.reason}",
    )


def _exactness(item: Stored) -> str:
    found = item.exactness
    if found is None:
        return "exactness: not probed here; it is before the next burst" if item.in_force else ""
    word = "vetoed" if found.vetoed else "not vetoed"
    return f"exactness: {found.record.level}, {word} ({found.required} required)"


def _age(item: Stored) -> str:
    if item.verdict is None or item.age_seconds is None:
        return ""
    text = f"settled {_when(item.verdict.settled_at)}, {_span(item.age_seconds)} ago"
    if item.due_at is None:
        return text
    return f"{text}; measured again on drift, at the latest {_when(item.due_at)}"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"at {seconds:.0f} s"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
