"""``mlxcel engine``: an engine in a process of its own, and how it is."""

from __future__ import annotations

import json
import logging
import os
import shlex
from contextlib import ExitStack
from typing import Any

import click

from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.cli.progress import bar
from mlxcel.cli.tables import make_console, make_table
from mlxcel.config import Settings
from mlxcel.front import default_drafter
from mlxcel.remote.address import Listener, default_socket
from mlxcel.remote.client import EngineClient
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.supervisor import Supervisor

HELP = {"help_option_names": ["-h", "--help"]}
STATUS_SECONDS = 10.0


class Display:
    """Tells people what the supervisor is told.

    Parameters
    ----------
    path : str
        The engine's socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._stack = ExitStack()
        self._progress: Any = None

    def __call__(self, state: dict[str, Any]) -> None:
        """Show a state."""
        if state["state"] == "loading":
            if self._progress is None:
                self._progress = self._stack.enter_context(bar())
            self._progress(state["label"], state["done"], state["total"])
            return
        self.close()
        if state["state"] == "ready":
            click.echo(f"ready: {state['model']}, drafter {state['drafter']}, at {self._path}")
            click.echo(f"try: mlxcel generate --socket {shlex.quote(self._path)} -p 'Hello'")
        elif state["state"] == "draining":
            click.echo("mlxcel: draining: running requests end, new ones are refused", err=True)
        elif state["state"] == "died":
            again = f"it starts again in {state['pause']:.1f} s"
            click.echo(f"mlxcel: {state['reason']}; {again}", err=True)

    def close(self) -> None:
        """Take the progress bar away."""
        self._stack.close()
        self._progress = None


def socket_path(given: str | None, settings: Settings) -> str:
    """Where the engine listens."""
    return given or str(default_socket(os.environ, settings))


@click.group(context_settings=HELP, invoke_without_command=True)
@click.option("--model", "-m", default="demo", show_default=True, help="Folder, hub id, GGUF.")
@click.option("--drafter", help="demo, lookup, mtp, none, a distilled folder, a Gemma 4 assistant, "
              "an EAGLE head, or a draft model (default: demo for the model demo, lookup for "
              "any other).")  # fmt: skip
@click.option("--socket", metavar="PATH", help="Where to listen (default: mlxcel.sock in "
              "$XDG_RUNTIME_DIR, else in the cache folder).")  # fmt: skip
@click.option("--drain-seconds", type=click.FloatRange(0, 86400), default=30.0, show_default=True,
              help="How long running requests may go on after SIGTERM.")  # fmt: skip
@click.option("--no-restart", is_flag=True, help="End when the engine dies.")
@click.option("--width", type=int, help="Block width that requests will ask for.")
@click.option("--weights", type=click.Choice(["auto", "stored", "dense"]), help="Form of weights.")
@numerics_option
@click.pass_context
def engine(
    context: click.Context,
    model: str,
    drafter: str | None,
    socket: str | None,
    drain_seconds: float,
    no_restart: bool,
    width: int | None,
    weights: str | None,
    numerics: str | None,
) -> None:
    """Serve a model to other processes, through a Unix socket.

    SIGTERM and Ctrl-C end it in order: running requests finish, new ones are refused. A second
    one cancels what runs. An engine that dies is started again.
    """
    if context.invoked_subcommand is not None:
        return
    settings = settings_for(width, weights=weights, numerics=numerics)
    spec = EngineSpec(
        target=model,
        drafter=drafter or default_drafter(model) or "lookup",
        settings=settings,
        drain_seconds=drain_seconds,
        log_level=logging.getLogger("mlxcel").level,
    )
    with Listener(socket_path(socket, settings)) as listener:
        show = Display(str(listener.path))
        Supervisor(spec, listener, restart=not no_restart, on_state=show).run()


@engine.command(context_settings=HELP)
@click.option("--socket", metavar="PATH", help="The engine's socket.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(socket: str | None, as_json: bool) -> None:
    """Show how a running engine is, and what it measures about itself."""
    path = socket_path(socket, Settings.from_env(os.environ))
    with EngineClient(path, timeout=STATUS_SECONDS, ready=False) as client:
        found = client.status()
        metrics = client.metrics() if found["state"] in ("ready", "draining") else {}
    if as_json:
        click.echo(json.dumps(found | {"metrics": metrics}, ensure_ascii=False))
        return
    table = make_table("what", "value")
    rows = [*found.items(), *((f"metrics: {name}", value) for name, value in metrics.items())]
    for name, value in rows:
        table.add_row(name, f"{value:.1f}" if isinstance(value, float) else str(value))
    make_console().print(table)
