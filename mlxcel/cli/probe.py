"""``mlxcel probe``: what this host's kernels cost, and whether a block says what steps say."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.cli.progress import bar
from mlxcel.config import Settings

if TYPE_CHECKING:
    from mlxcel.decide.exactness import ExactnessRecord, Required, VetoState
    from mlxcel.decide.kernels import KernelVerdict
    from mlxcel.engine.price import PriceReport
    from mlxcel.hardware.host import Host
    from mlxcel.hardware.kernels import KernelTimes
    from mlxcel.runtime.loader import LoadedModel

__all__ = ["probe"]

HELP = {"help_option_names": ["-h", "--help"]}
DECLINED = 1


@click.group(context_settings=HELP)
def probe() -> None:
    """Measure kernels and exactness on this host."""


@probe.command(context_settings=HELP)
@click.option("--model", "-m", default="demo", show_default=True, help="Folder, hub id, GGUF.")
@click.option("--width", type=click.IntRange(2, 16), default=4, show_default=True,
              help="Expected block width, for the form to serve.")  # fmt: skip
@click.option("--refresh", is_flag=True, help="Measure again, whatever is in the cache.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg",
              help="Draw the cost over rows (needs matplotlib).")  # fmt: skip
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True,
              help="Colours of the plot.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def kernels(
    model: str, width: int, refresh: bool, plot: Path | None, theme: Any, as_json: bool
) -> None:
    """Time the model's projections at 1 to 16 rows, as stored and dense.

    Says whether the host is wide or narrow for each form, which form to serve, and to how
    many rows a verify should be padded. No weights are read.
    """
    from mlxcel.bench.kernel_plot import kernel_svg, require_matplotlib
    from mlxcel.decide.kernels import decide_kernels
    from mlxcel.hardware.host import describe
    from mlxcel.runtime.kernel_profile import kernel_times, shapes_of

    if plot is not None:
        require_matplotlib()
    settings = Settings.from_env(os.environ)
    host = describe()
    with bar() as progress:
        shapes, dtype = shapes_of(model, cache_dir=settings.cache_dir, progress=progress)
    times, cached = kernel_times(
        shapes, dtype, cache_dir=settings.cache_dir, host=host, refresh=refresh
    )
    verdict = decide_kernels(times.table(), times.counts, width=width)
    disagrees = _disagreement(verdict, host)
    if plot is not None:
        subtitle = f"{host.chip}, {host.backend}, {times.dtype}"
        plot.write_text(kernel_svg(verdict, f"{model}: rows of a pass", subtitle, theme))
    if as_json:
        click.echo(json.dumps(_kernel_json(model, host, times, cached, verdict, disagrees)))
        return
    _show_kernels(model, host, times, cached, verdict, disagrees)


def _disagreement(verdict: KernelVerdict, host: Host) -> str:
    from mlxcel.cli.gate_host import this_chip
    from mlxcel.decide.kernels import disagreement

    return disagreement(verdict, this_chip()) if host.backend == "metal" else ""


def _kernel_json(
    model: str, host: Host, times: KernelTimes, cached: bool, verdict: KernelVerdict, disagrees: str
) -> dict[str, Any]:
    return {
        "model": model,
        "host": {"backend": host.backend, "chip": host.chip, "cores": host.cores,
                 "blas": host.blas.name, "versions": dict(host.versions)},
        "dtype": times.dtype,
        "cached": cached,
        "seconds": times.seconds,
        "taken_on": times.taken_on,
        "projections": [
            {"name": p.name, "inputs": p.inputs, "outputs": p.outputs, "bits": p.bits,
             "group_size": p.group_size, "mode": p.mode, "count": p.count}
            for p in times.projections
        ],
        "cells": [
            {"projection": name, "form": form, "rows": rows, "samples": list(samples)}
            for (name, form, rows), samples in times.samples.items()
        ],
        "skipped": [
            {"projection": name, "form": form, "reason": reason}
            for (name, form), reason in times.skipped.items()
        ],
        "verdict": verdict.to_dict(),
        "disagreement": disagrees or None,
    }  # fmt: skip


def _show_kernels(
    model: str, host: Host, times: KernelTimes, cached: bool, verdict: KernelVerdict, disagrees: str
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    origin = f"taken on {times.taken_on}" if cached else f"measured in {times.seconds:.1f} s"
    origin = f"from the cache, {origin}" if cached else origin
    console = Console(markup=False, highlight=False)
    console.print(f"{model} on {host.chip} ({host.backend}, {times.dtype}), {origin}")
    for p in times.projections:
        stored = f"{p.bits}-bit, groups of {p.group_size}" if p.bits else "not quantized"
        console.print(f"{p.name}: {p.inputs} x {p.outputs}, {stored}, {p.count:g} in a pass")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    medians = times.table()
    rows = sorted({count for cells in medians.values() for count in cells})
    table.add_column("ms at rows")
    for count in rows:
        table.add_column(str(count), justify="right")
    for (name, form), cells in medians.items():
        table.add_row(f"{name} {form}", *(_milliseconds(cells.get(count)) for count in rows))
    for found in verdict.forms.values():
        whole = [_milliseconds(found.seconds.get(count)) for count in rows]
        table.add_row(f"pass {found.form}", *whole, style="bold")
    console.print(table)
    console.print(f"Serve {verdict.serve}: {verdict.reason}.")
    for (name, form), why in times.skipped.items():
        console.print(f"Not timed: {name} {form}: {why}.")
    if disagrees:
        console.print(f"Disagreement: {disagrees}.")


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


@probe.command(context_settings=HELP)
@click.option("--model", "-m", default="demo", show_default=True, help="Folder, hub id, GGUF.")
@click.option("--width", type=click.IntRange(2, 16), default=4, show_default=True,
              help="Block width K.")  # fmt: skip
@click.option("--weights", type=click.Choice(["auto", "stored", "dense"]), help="Form of weights.")
@numerics_option
@click.option("--price", is_flag=True, help="Measure what invariant numerics cost here.")
@click.option("--refresh", is_flag=True, help="Probe again, whatever is in the cache.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def exactness(
    ctx: click.Context,
    model: str,
    width: int,
    weights: str | None,
    numerics: str | None,
    price: bool,
    refresh: bool,
    as_json: bool,
) -> None:
    """Compare a verify of K tokens with K single steps from the same state.

    Both are run as decoding runs them in the numerics that are asked for. Ends with status 1
    where bursts are declined at the level that MLXCEL_MTP_EXACTNESS asks for, and always where
    block and steps diverge.
    """
    from mlxcel.decide.exactness import veto_of
    from mlxcel.engine.exactness import exactness_of
    from mlxcel.engine.prepare import load_model

    settings = settings_for(width, weights=weights, numerics=numerics)
    with bar() as progress:
        loaded = load_model(model, settings, progress)
    record = exactness_of(loaded, width, settings, refresh=refresh)
    required: Required = settings.mtp_exactness
    veto = veto_of(record, required)
    paid = _measured_price(loaded, settings, width) if price else None
    if as_json:
        shown = record.to_dict() | {
            "model": model,
            "weights": loaded.representation.form,
            "dtype": loaded.representation.dtype,
            "numerics": settings.numerics,
            "required": required,
            "vetoed": veto.vetoed,
            "price": None if paid is None else dataclasses.asdict(paid),
        }
        click.echo(json.dumps(shown))
    else:
        title = f"{model}, {loaded.representation.summary}, {settings.numerics} numerics"
        _show_exactness(title, record, veto, paid)
    if veto.vetoed or record.level == "divergent":
        ctx.exit(DECLINED)


def _measured_price(model: LoadedModel, settings: Settings, width: int) -> PriceReport | None:
    """The price, or ``None`` for a model that only decodes one token at a time."""
    from mlxcel.engine.price import measure_price

    if model.target.layout.windows is None:
        return None
    return measure_price(model, settings, width)


def _show_exactness(
    title: str, record: ExactnessRecord, veto: VetoState, paid: PriceReport | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("model", title)
    table.add_row("width", str(record.width))
    table.add_row("verdict", f"{record.level}: {record.reason}")
    if record.level != "unprobed":
        table.add_row("largest logit difference", f"{record.largest_difference:.2e}")
        table.add_row("smallest top-2 margin", f"{record.smallest_margin:.2e}")
        table.add_row("draws", f"{record.draws} in {record.seconds:.1f} s")
    if record.first_position is not None:
        table.add_row("first divergence", f"position {record.first_position}, {record.first_draw}")
    if record.layer is not None:
        table.add_row("begins in layer", f"{record.layer} ({record.layer_difference:.1e})")
    answer = f"declined: {veto.reason}" if veto.vetoed else "not vetoed"
    table.add_row("bursts", f"{answer} (required: {veto.required})")
    if paid is not None:
        found = f"{paid.classic.describe()}; {paid.verify.describe()}"
        table.add_row("price of invariant", f"{paid.block} tokens per row in every pass; {found}")
    Console(markup=False, highlight=False).print(table)
