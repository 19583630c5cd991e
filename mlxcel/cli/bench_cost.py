"""``mlxcel bench cost``: what passes of a published geometry cost here, with made-up weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxcel.cli.bench_guards import guard_options
from mlxcel.config import Settings
from mlxcel.errors import ConfigError, LoadError

if TYPE_CHECKING:
    from mlxcel.bench.guarded import OpenGuards
    from mlxcel.hardware.peaks import Peak
    from mlxcel.runtime.cost_plan import CostPlan
    from mlxcel.runtime.geometry import Geometry

__all__ = ["cost"]

HELP = {"help_option_names": ["-h", "--help"]}
WIDTHS = "1,2,3,4,6,8,16"

# Read when MLX first needs the GPU. Every shape makes graphs of its own, and more than twice this
# many ends the process.
GRAPHS = ("MLX_CUDA_GRAPH_CACHE_SIZE", "20000")


@click.command(context_settings=HELP)
@click.option("--geometry", "-g", metavar="NAME|FILE.json",
              help="A published geometry, a JSON file of one, or 'list'.")  # fmt: skip
@click.option("--layers", type=click.IntRange(min=1), metavar="N",
              help="Build only N layers and scale; a multiple of the model's pattern.")  # fmt: skip
@click.option("--weights", type=click.Choice(["both", "stored", "dense"]), default="both",
              show_default=True, help="Representations to measure.")  # fmt: skip
@click.option("--pad", type=click.IntRange(1, 64), default=8, show_default=True,
              help="Also feed narrower verifies this many tokens; 1 for not.")  # fmt: skip
@click.option("--context", type=click.IntRange(1, 1 << 20), default=640, show_default=True,
              help="Tokens in the caches.")  # fmt: skip
@click.option("--widths", default=WIDTHS, show_default=True, help="Block widths of verifies.")
@click.option("--repeats", type=click.IntRange(1, 99), default=5, show_default=True,
              help="Samples of each pass.")  # fmt: skip
@click.option("--budget", type=click.FloatRange(min=0), default=120.0, show_default=True,
              help="Seconds after which no further sample begins.")  # fmt: skip
@click.option("--bandwidth", type=click.FloatRange(min=0, min_open=True), metavar="GB/S",
              help="Peak memory bandwidth of a chip that is not in the table.")  # fmt: skip
@click.option("--tflops", type=click.FloatRange(min=0, min_open=True),
              help="Peak dense arithmetic of a chip that is not in the table.")  # fmt: skip
@click.option("--output", "-o", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Write the record, a Markdown page and a plot there.")  # fmt: skip
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.json",
              help="Check and show a record of before; measures nothing.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write the record to standard output.")
@guard_options
def cost(
    geometry: str | None,
    record: Path | None,
    output: Path | None,
    as_json: bool,
    guards: Callable[[Path], OpenGuards],
    **options: Any,
) -> None:
    """Measure classic step, draft, verify by width and the parts of a pass.

    The model is built layer by layer from mlx-lm's own classes at the published sizes, with
    made-up weights: no checkpoint is needed, and nothing but cost can be learnt.
    """
    if (geometry is None) is (record is None):
        raise ConfigError("give either --geometry or --record", param="geometry")
    if geometry == "list":
        _show_names()
        return
    if geometry is not None:
        found = _measured(geometry, options, output, guards)
    else:
        found = _checked(record)
    if output is not None:
        _write(found, output)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from mlxcel.bench.cost_report import cost_markdown

    click.echo(cost_markdown(found))


def _measured(
    geometry: str,
    options: dict[str, Any],
    output: Path | None,
    guards: Callable[[Path], OpenGuards],
) -> dict[str, Any]:
    """Measure under the guards, and make a record of it."""
    os.environ.setdefault(*GRAPHS)
    from mlxcel.bench.cost_record import cost_id, cost_record
    from mlxcel.bench.provenance import collect
    from mlxcel.bench.results import prepare_folder
    from mlxcel.cli.progress import bar
    from mlxcel.hardware.host import describe
    from mlxcel.runtime.cost_profile import measure_costs

    settings = Settings.from_env(os.environ)
    sizes = _geometry(geometry).with_layers(options["layers"])
    plan = _plan(options, settings)
    host = describe()
    peak = _peak(options, host.chip)
    started = datetime.now(UTC)
    identity = _identity(sizes, started)
    if output is not None:
        prepare_folder(output, cost_id(identity, host, sizes.layers, sizes.layers_published))
    with guards(settings.cache_dir)() as working, bar() as progress:
        times = measure_costs(sizes, plan, progress=progress)
    provenance = collect(
        host,
        kernel=None,
        exactness=None,
        command=sys.argv,
        environ=os.environ,
        started=started,
        seconds=times.seconds,
        guards=working.report(),
        cost_only=True,
    )
    return cost_record(times, identity, host, peak, provenance)


def _checked(path: Path | None) -> dict[str, Any]:
    """A record from a file, all of whose figures follow from its samples."""
    from mlxcel.decide.cost_recompute import cost_complaints, is_cost_record
    from mlxcel.evidence import read_json

    assert path is not None
    found: Any = read_json(path)
    if not is_cost_record(found):
        raise LoadError(
            f"{path}: is no cost-only record; mlxcel bench verify checks any other", param="record"
        )
    complaints = cost_complaints(found, str(path))
    if complaints:
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        raise LoadError(f"{complaints[0]}{more}", param="record")
    record: dict[str, Any] = found
    return record


def _geometry(name: str) -> Geometry:
    """A published geometry by its name, or that of a file."""
    from mlxcel.assets import published_geometries
    from mlxcel.runtime.geometry import parse_geometry

    known = published_geometries()
    if name in known:
        return parse_geometry(name, known[name])
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise ConfigError(
            f"--geometry {name!r} is no published geometry ({', '.join(known)}) and no JSON file",
            param="geometry",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error})", param="geometry") from None
    return parse_geometry(path.stem, data)


def _plan(options: dict[str, Any], settings: Settings) -> CostPlan:
    from mlxcel.runtime.cost_plan import CostPlan

    try:
        widths = tuple(sorted({int(word) for word in options["widths"].split(",")}))
    except ValueError:
        raise ConfigError(
            f"--widths must be whole numbers with commas between them, got {options['widths']!r}",
            param="widths",
        ) from None
    forms = ("stored", "dense") if options["weights"] == "both" else (options["weights"],)
    plan = CostPlan(
        forms=forms,
        widths=widths,
        pads=tuple(sorted({1, options["pad"]})),
        context=options["context"],
        repeats=options["repeats"],
        budget=options["budget"],
    )
    return replace(plan, length_step=settings.length_step)


def _peak(options: dict[str, Any], chip: str) -> Peak | None:
    """Peaks as given on the command line, else those of the table."""
    from mlxcel.hardware.peaks import Peak, peak_of

    given = (options["bandwidth"], options["tflops"])
    if given == (None, None):
        return peak_of(chip)
    if None in given:
        raise ConfigError("--bandwidth and --tflops are given together or not at all")
    return Peak(
        bytes_per_second=1e9 * given[0],
        flops_per_second=1e12 * given[1],
        source="given on the command line",
    )


def _identity(sizes: Geometry, started: datetime) -> Any:
    from mlxcel.bench.cost_record import CostIdentity

    drafter = sizes.drafter
    return CostIdentity(
        geometry=sizes.name,
        source=sizes.source,
        target=sizes.checkpoint,
        drafter="" if drafter is None else drafter.checkpoint,
        target_quantization=sizes.quantization.name,
        drafter_quantization="" if drafter is None else drafter.quantization.name,
        batch_capable=sizes.batch_capable,
        day=started.date().isoformat(),
    )


def _write(record: dict[str, Any], folder: Path) -> None:
    """The record first: a page or a plot can be made from it again."""
    from mlxcel.bench.cost_plot import cost_svg
    from mlxcel.bench.cost_report import cost_markdown
    from mlxcel.bench.results import prepare_folder, refuse_existing
    from mlxcel.evidence import read_json

    prepare_folder(folder, None)
    name = record["id"]
    path = folder / f"{name}.json"
    if not path.exists():
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    elif read_json(path) != record:  # its page and plots may be made again beside it
        refuse_existing(path)
    (folder / f"{name}.md").write_text(cost_markdown(record), encoding="utf-8")
    for theme in ("light", "dark"):
        text = cost_svg(record, theme)
        (folder / f"{name}-{theme}.svg").write_text(text, encoding="utf-8")


def _show_names() -> None:
    from mlxcel.assets import published_geometries
    from mlxcel.runtime.geometry import parse_geometry

    for name, data in published_geometries().items():
        sizes = parse_geometry(name, data)
        drafter = "no drafter" if sizes.drafter is None else sizes.drafter.checkpoint
        click.echo(f"{name}: {sizes.layers} layers, {sizes.checkpoint} with {drafter}")
        click.echo(f"  sizes from: {sizes.source}")
