"""Options that the benchmark commands share, and how a pairing is loaded for them."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxcel.bench.guarded import OpenGuards, unguarded
from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.errors import ConfigError, LoadError

if TYPE_CHECKING:
    from mlxcel.bench.campaign import Opened
    from mlxcel.bench.pairings import Checkpoints
    from mlxcel.bench.protocol import Plan
    from mlxcel.config import Settings
    from mlxcel.llm import LLM

__all__ = ["bench_options", "load", "measure", "quick_plan", "width_list"]

_OPTIONS = (
    click.option("--pairing", type=click.Choice(["demo", "gemma31b", "gemma12b", "qwen"]),
                 help="Target and drafter by name (default: demo)."),
    click.option("--model", "-m", help="Target instead: folder, hub id, GGUF."),
    click.option("--drafter", help="Its drafter: folder, hub id, or lookup."),
    click.option("--weights", type=click.Choice(["auto", "stored", "dense"]),
                 help="Form of weights."),
    numerics_option,
    click.option("--prompts", multiple=True, metavar="NAME",
                 help="Standard prompt: enumeration, code, prose; may be repeated."),
    click.option("--prompt-file", "prompt_files", multiple=True,
                 type=click.Path(path_type=Path, dir_okay=False),
                 help="A prompt of your own; may be repeated."),
    click.option("--tokens", "-n", type=click.IntRange(min=2), help="Tokens of a run."),
    click.option("--blocks", type=click.IntRange(min=1), help="Blocks of each prompt."),
    click.option("--pause", type=click.FloatRange(min=0), default=0.0, show_default=True,
                 help="Seconds between runs."),
    click.option("--quick", is_flag=True,
                 help="2 blocks of 64 tokens: shows that it works, is not published."),
    click.option("--output", "-o", "folder", default="bench-results", show_default=True,
                 type=click.Path(path_type=Path, file_okay=False), help="Folder for the results."),
    click.option("--id", "name", help="Id of the record (default: pairing, chip and time)."),
)  # fmt: skip


def bench_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), command)


def load(*args: Any, **options: Any) -> LLM:
    """`mlxcel.load`, imported when it is called."""
    from mlxcel.llm import load

    return load(*args, **options)


def width_list(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Widths out of ``2,3,4``."""
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        wanted = "give whole numbers with commas, as 2,3,4"
        raise click.BadParameter(f"{wanted}, not {value!r}") from None


def quick_plan(
    prompts: dict[str, str],
    widths: Iterable[int],
    *,
    tokens: int | None,
    blocks: int | None,
    pause: float,
    quick: bool,
) -> Plan:
    """The plan that the options make; what was given explicitly outranks ``--quick``."""
    from mlxcel.bench.protocol import Plan
    from mlxcel.decide.bench_limits import MIN_BLOCKS

    return Plan(
        prompts=prompts,
        widths=tuple(widths),
        tokens=tokens or (64 if quick else 128),
        blocks=blocks or (2 if quick else MIN_BLOCKS),
        pause=pause,
    )


def measure(
    tool: str,
    plan: Plan,
    checkpoints: Checkpoints,
    *,
    named: bool,
    weights: str | None,
    numerics: str | None,
    folder: Path,
    name: str | None,
    quick: bool,
    guards: Callable[[Path], OpenGuards] = lambda folder: unguarded,
) -> None:
    """Run a campaign, write its files, and show the rows; then raise what ended it early.

    ``guards`` makes the guards, given the user's cache folder.
    """
    from mlxcel.bench.campaign import Campaign, run_campaign
    from mlxcel.bench.results import prepare_folder, write_results
    from mlxcel.cli.bench_tables import show_record

    settings = settings_for(max(plan.widths), weights=weights, numerics=numerics, prefix_bytes=0)
    if max(plan.widths) > settings.max_width:  # before the wait for a quiet host and the load
        raise ConfigError(
            f"width must be 2 to max_width = {settings.max_width}, got {max(plan.widths)}; "
            "MLXCEL_MAX_WIDTH raises it",
            param="width",
        )
    prepare_folder(folder, name)
    campaign = Campaign(
        pairing=checkpoints.name,
        drafter=Path(checkpoints.drafter).name,
        tool=tool,
        plan=plan,
        command=("mlxcel", *sys.argv[1:]),
        environ=os.environ,
        clock=time.perf_counter,
        sleep=time.sleep,
        name=name,
        notes="quick run" if quick else None,
        guards=guards(settings.cache_dir),
        say=lambda text: click.echo(text, err=True),
    )
    with ExitStack() as stack:
        opened = _opened(checkpoints, settings, plan.widths, named=named)
        ended = run_campaign(campaign, lambda: stack.enter_context(opened))
    show_record(ended.record, write_results(ended.record, folder)[:2])
    if ended.failure is not None:
        raise ended.failure


@contextmanager
def _opened(
    checkpoints: Checkpoints, settings: Settings, widths: tuple[int, ...], *, named: bool
) -> Iterator[Opened]:
    from mlxcel.bench.arms import LlmRunner
    from mlxcel.bench.campaign import Opened
    from mlxcel.bench.pairings import missing
    from mlxcel.cli.progress import bar
    from mlxcel.engine.bench_facts import bench_facts
    from mlxcel.hardware.host import describe

    try:
        with bar() as progress:
            llm = load(checkpoints.target, checkpoints.drafter, config=settings, progress=progress)
    except LoadError as error:
        raise missing(checkpoints, error) if named else error from None
    with llm:
        yield Opened(
            runner=LlmRunner(llm),
            # On the engine's thread, which is MLX's.
            machine=llm.call(lambda engine: describe()),
            facts=llm.call(lambda engine: bench_facts(engine, widths)),
        )
