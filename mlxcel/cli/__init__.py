"""The ``mlxcel`` command. Subcommands are imported when they are called, not before."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import click

from mlxcel import __version__
from mlxcel.cli.errors import friendly

__all__ = ["main"]

# Name, module and the line that --help shows without importing the module.
COMMANDS = {
    "bench": ("mlxcel.cli.bench", "Measure pairings on this host, and check records."),
    "distill": ("mlxcel.cli.distill", "Make a drafter for a target."),
    "demo": ("mlxcel.cli.demo", "Answer prompts classic and speculative, and compare."),
    "engine": ("mlxcel.cli.engine", "Serve a model to other processes, or show how it is."),
    "generate": ("mlxcel.cli.generate", "Continue a prompt."),
    "gate": ("mlxcel.cli.gate", "Say whether bursts pay, on which evidence, here or elsewhere."),
    "info": ("mlxcel.cli.info", "Show what this host is and which versions run."),
    "pairings": ("mlxcel.cli.pairings", "List targets and drafters that are known to fit."),
    "serve": ("mlxcel.cli.serve", "Serve a model over HTTP: OpenAI's API and a page."),
    "probe": ("mlxcel.cli.probe", "Measure kernels and exactness on this host."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, as an attribute of their name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; ``None`` when there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run; errors of mlxcel end as one line and an exit status."""
        return friendly(super().main, *args, **kwargs)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True
)
@click.option("-v", "--verbose", count=True, help="Log more: -v for information, -vv for all.")
@click.version_option(__version__, prog_name="mlxcel")
def main(verbose: int) -> None:
    """Language models on MLX with speculative decoding one can trust."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("mlxcel: %(levelname)s: %(message)s"))
    logger = logging.getLogger("mlxcel")
    logger.handlers = [h for h in logger.handlers if isinstance(h, logging.NullHandler)]
    logger.addHandler(handler)
    logger.setLevel(level)
