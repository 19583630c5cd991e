"""``mlxcel bench``: measures pairings on this host, and checks what was measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from mlxcel.cli.bench_cost import cost
from mlxcel.cli.bench_guards import guard_options
from mlxcel.cli.bench_options import bench_options, measure, quick_plan, width_list
from mlxcel.cli.bench_records import compare, predict_command, submit

__all__ = ["bench"]

HELP = {"help_option_names": ["-h", "--help"]}
REFUSED = 1


@click.group(context_settings=HELP)
def bench() -> None:
    """Measure speculative decoding on this host, in records that anyone can check.

    A record holds every raw sample; `mlxcel bench verify` works all figures out of them again.
    """


@bench.command(context_settings=HELP)
@click.option("--width", "-k", type=click.IntRange(min=2), default=4, show_default=True,
              help="Block width K: 1 bonus token and K-1 drafts.")  # fmt: skip
@bench_options
@guard_options
def speculative(width: int, **options: Any) -> None:
    """Compare classic and speculative decode, prompt by prompt.

    Runs alternate (classic, speculative, speculative, classic), token ids are compared in every
    block. Writes a record, a report and plots.
    """
    _campaign("mlxcel bench speculative", (width,), options)


@bench.command(context_settings=HELP)
@click.option("--widths", "-k", default="2,3,4,5,6,8", show_default=True, callback=width_list,
              metavar="K,K,...", help="Block widths.")  # fmt: skip
@bench_options
@guard_options
def width(widths: tuple[int, ...], **options: Any) -> None:
    """Sweep the block width: round cost with a fit, break-even and the best width.

    By default on the code prompt alone.
    """
    if not options["prompts"] and not options["prompt_files"]:
        options["prompts"] = ("code",)
    _campaign("mlxcel bench width", widths, options)


@bench.command(context_settings=HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE...",
                type=click.Path(path_type=Path, dir_okay=False))  # fmt: skip
@click.pass_context
def verify(ctx: click.Context, files: tuple[Path, ...]) -> None:
    """Work out every figure and verdict of records again, from their raw samples.

    Names each figure that its samples contradict, and exits with status 1 then. A record
    without raw samples is checked for its form.
    """
    complaints = importlib.import_module("mlxcel.decide.recompute").complaints
    read_json = importlib.import_module("mlxcel.evidence").read_json
    refused = 0
    for path in files:
        found = complaints(read_json(path), str(path))
        for line in found or [f"{path}: sound"]:
            click.echo(line, err=bool(found))
        refused += bool(found)
    if refused:
        ctx.exit(REFUSED)


for _command in (cost, compare, predict_command, submit):
    bench.add_command(_command)


def _campaign(tool: str, widths: tuple[int, ...], options: dict[str, Any]) -> None:
    """Options to a plan, and off."""
    pairings = importlib.import_module("mlxcel.bench.pairings")
    chosen, named = pairings.checkpoints_of(
        options.pop("pairing"), options.pop("model"), options.pop("drafter")
    )
    prompts = pairings.chosen_prompts(options.pop("prompts"), options.pop("prompt_files"))
    plan = quick_plan(
        prompts,
        widths,
        tokens=options.pop("tokens"),
        blocks=options.pop("blocks"),
        pause=options.pop("pause"),
        quick=options["quick"],
    )
    measure(tool, plan, chosen, named=named, **options)
