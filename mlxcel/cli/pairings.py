"""``mlxcel pairings``: which targets and drafters are known to fit."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from mlxcel.cli.as_json import json_option, write_json
from mlxcel.cli.tables import make_console, make_table, stacked
from mlxcel.config import Settings
from mlxcel.decide.pairings import KNOWN_PAIRINGS, KnownPairing

__all__ = ["pairings"]

UNTRIED = (
    "Assistants and heads are checked on tiny checkpoints of their layout, against transformers or "
    "(EAGLE) against their equations in NumPy; we have not run the published weights."
)


@click.command()
@json_option
def pairings(as_json: bool) -> None:
    """List targets and drafters that are known to fit, and what each needs.

    Others work too: any draft model with the target's vocabulary, prompt lookup with any target,
    and heads made by `mlxcel distill`.
    """
    Settings.from_env()  # a wrong variable is named here as everywhere
    if as_json:
        found = [asdict(each) | {"command": each.command} for each in KNOWN_PAIRINGS]
        write_json(found)
        return
    table = make_table(("pairing", {"no_wrap": True}), "target", "drafter", "", "needs")
    for each in KNOWN_PAIRINGS:
        table.add_row(*_row(each))
    console = make_console()
    console.print(table)
    first = next(each for each in KNOWN_PAIRINGS if each.supported and each.name != "demo")
    console.print(f"\n{UNTRIED}", style="dim")
    console.print(f"try: {first.command}", soft_wrap=True)


def _row(each: KnownPairing) -> tuple[str | Text, ...]:
    size = each.drafter_parameters
    weights = f"{size / 1e6:.0f} million weights" if size else ""
    state = "supported" if each.supported else "not yet"
    drafters = stacked(*each.drafters, weights)
    needs = stacked(each.needs, Text(f"names and sizes: {each.source}", style="dim"))
    return each.name, stacked(*each.targets), drafters, state, needs
