"""``mlxcel distill``: make an MTP drafter for a target."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from mlxcel.distill.training import Progress

__all__ = ["distill"]

# Read when MLX first needs the GPU; a growing text makes many graphs.
ENVIRONMENT = {"MLX_CUDA_GRAPH_CACHE_SIZE": "2000"}
LOG_SECONDS = 10.0


class Watcher:
    """Shows a run: bars on a terminal, a line now and then elsewhere."""

    def __init__(self, bars: Bars | None, *, shown: bool = True) -> None:
        self._bars, self._shown = bars, shown
        self._tasks: dict[str, TaskID] = {}
        self._logged = 0.0

    def note(self, text: str) -> None:
        """A line."""
        if self._bars is None:
            if self._shown:
                click.echo(text, err=True)
        else:
            self._bars.console.print(text, highlight=False, markup=False)

    def tick(self, label: str, done: int, total: int) -> None:
        """Steps of a phase."""
        self._show(label, done / max(total, 1), f"{done}/{total}")

    def trained(self, progress: Progress) -> None:
        """A training step."""
        left = ""
        if progress.fraction > 0:
            seconds = progress.seconds * (1 / progress.fraction - 1)
            left = f", {seconds / 60:.1f} min left"
        self._show(
            "training",
            progress.fraction,
            f"step {progress.step}, loss {progress.loss:.3f}, first draft "
            f"{progress.agreement:.3f}, {progress.tokens_per_second:.0f} tok/s{left}",
        )

    def _show(self, label: str, fraction: float, detail: str) -> None:
        if self._bars is None:
            now = time.monotonic()
            if self._shown and (now - self._logged >= LOG_SECONDS or fraction >= 1):
                click.echo(f"{label}: {100 * fraction:.0f} %, {detail}", err=True)
                self._logged = now
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=1.0, detail="")
        self._bars.update(self._tasks[label], completed=fraction, detail=detail)


def _part(context: Any, option: Any, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    part, slash, parts = value.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise click.BadParameter(f"must be like 0/2 (part 0 or 1 of 2), got {value!r}")
    return int(part), int(parts)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", "-t", required=True, help="Folder, hub id, GGUF, demo.")
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path, file_okay=False),
              help="Folder of the drafter; text and checkpoint are kept there.")  # fmt: skip
@click.option("--minutes", type=float, help="Training time; the schedule follows the clock.")
@click.option("--steps", type=int, help="Training steps; with it alone a run can be repeated.")
@click.option("--prompts", type=click.Path(path_type=Path, dir_okay=False),
              help="Prompts of your own: one per line, or .jsonl with prompt or text.")  # fmt: skip
@click.option("--tokens", type=int, default=20_000_000, show_default=True, help="Of training text.")
@click.option("--draft-vocab", type=int, default=16_384, show_default=True,
              help="Ids the head may propose: the most frequent of the text.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--batch-rows", "rows", type=int, default=0, help="Written together; 0: by memory.")
@click.option("--train-rows", type=int, default=0, help="Rows of a training step; 0: by backend.")
@click.option("--length", type=int, default=512, show_default=True, help="Tokens of a row.")
@click.option("--turn-tokens", type=int, default=280, show_default=True,
              help="Longest turn of the training text.")  # fmt: skip
@click.option("--unroll", type=int, default=4, show_default=True, help="Chained steps trained.")
@click.option("--decay", type=float, default=0.8, show_default=True,
              help="Weight of each step relative to the one before.")  # fmt: skip
@click.option("--muon-lr", type=float, default=2e-2, show_default=True, help="Of matrices.")
@click.option("--adam-lr", type=float, default=2e-3, show_default=True, help="Of norms.")
@click.option("--weight-decay", type=float, default=0.02, show_default=True, help="Of matrices.")
@click.option("--eval-tokens", type=int, default=256, show_default=True, help="Per answer.")
@click.option(
    "--eval-prompts", type=int, default=48, show_default=True, help="Of ours, at most 48."
)
@click.option("--compile/--no-compile", "compiled", default=False, show_default=True,
              help="Compile the training step; slow to begin on CUDA.")  # fmt: skip
@click.option("--text-part", callback=_part, metavar="I/N",
              help="Only write part I (0 to N - 1) of N of the text: "
              "one process per GPU.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--profile-steps", type=int, default=0, help="Only time so many steps of each phase.")
def distill(
    target: str, text_part: tuple[int, int] | None, resume: bool, profile_steps: int, **params: Any
) -> None:
    """Make an MTP drafter for a target.

    The target writes its own training text; a one-layer head is trained on it and evaluated
    on answers it has not seen. Training stops at --minutes or --steps, whichever is first.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlxcel.config import Settings
    from mlxcel.distill.options import Options
    from mlxcel.runtime.loader import load_checkpoint

    if profile_steps and params["minutes"] is None and params["steps"] is None:
        params["steps"] = profile_steps
    options = Options(target=target, **params)
    settings = Settings.from_env(os.environ)
    model = load_checkpoint(target, cache_dir=settings.cache_dir, weights="dense")
    if profile_steps:
        from mlxcel.distill.profile import profile

        for line in profile(model, options, profile_steps):
            click.echo(line)
        return
    _run(model, options, resume, text_part)


def _run(model: Any, options: Any, resume: bool, text_part: tuple[int, int] | None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from mlxcel.distill.group import Group
    from mlxcel.distill.pipeline import distill as run
    from mlxcel.distill.pipeline import write_text

    group = Group.launched()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[detail]}"))  # fmt: skip
    command = shlex.join(["mlxcel", *sys.argv[1:]])
    drawn = console.is_terminal and group.alone
    with Progress(*columns, console=console, disable=not drawn) as bars:
        watcher = Watcher(bars if drawn else None, shown=group.rank == 0)
        if text_part is not None:
            write_text(model, options, watcher, *text_part)
            return
        result = run(model, options, watcher, resume=resume, command=command, group=group)
    if group.rank == 0:
        _print(result)


def _print(result: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from mlxcel.distill.report import table

    header, *lines = table(result.evaluation)
    shown = Table(title="tokens per verify pass by block width")
    for name in header:
        shown.add_column(name)
    for line in lines:
        shown.add_row(*line)
    Console(width=120).print(shown)
    click.echo(f"{result.folder}: written")
