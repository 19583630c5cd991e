"""``mlxcel serve``: an engine process and the HTTP API in front of it."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shlex
from pathlib import Path
from typing import Any

import click

from mlxcel.cli.engine import Display, socket_path
from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.cli.web_process import Web, WebOptions, run_both
from mlxcel.errors import ConfigError
from mlxcel.front import default_drafter
from mlxcel.remote.address import Listener
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.supervisor import Supervisor

HELP = {"help_option_names": ["-h", "--help"]}
NEEDED = ("flask", "gunicorn", "prometheus_client", "pydantic", "webapp")


def _check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the web parts are not installed ({', '.join(missing)}): pip install 'mlxcel[web]'"
        )


def _model_name(model: str) -> str:
    """What clients call the model: the last part of a folder, else the name as it is."""
    return Path(model).resolve().name if Path(model).exists() else model


def _curl(address: str, name: str, keys: str | None) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    key = "-H 'Authorization: Bearer KEY' " if keys else ""
    return (
        f"curl -N {address}/v1/chat/completions {key}-H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


class Announcer:
    """Tells people when the engine is ready, and how to try it.

    Parameters
    ----------
    address : str
        Of the API.
    name : str
        Of the model.
    keys : str or None
        The file of keys, if any.
    """

    def __init__(self, address: str, name: str, keys: str | None) -> None:
        self._address, self._name, self._keys = address, name, keys
        self._display = Display("")

    def __call__(self, state: dict[str, Any]) -> None:
        """Show a state of the engine."""
        if state["state"] != "ready":
            self._display(state)
            return
        self._display.close()
        click.echo(f"ready: {self._name}, drafter {state['drafter']}, at {self._address}")
        click.echo(f"try: {_curl(self._address, self._name, self._keys)}")


@click.command(context_settings=HELP)
@click.option("--model", "-m", default="demo", show_default=True, help="Folder, hub id, GGUF.")
@click.option("--drafter", "--draft-model", help="demo, lookup, mtp, none, a distilled folder, "
              "a Gemma 4 assistant, an EAGLE head, or a draft model (default: demo for the "
              "model demo, lookup for any other).")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Processes that speak HTTP; they share one engine.")  # fmt: skip
@click.option("--threads", type=click.IntRange(9, 1024), default=128, show_default=True,
              help="Connections that each serves at once; 8 are kept for questions.")  # fmt: skip
@click.option("--socket", metavar="PATH", help="The engine's socket (default: mlxcel.sock in "
              "$XDG_RUNTIME_DIR, else in the cache folder).")  # fmt: skip
@click.option("--api-key-file", type=click.Path(dir_okay=False, exists=True),
              help="Keys, one a line; any of them opens the API.")  # fmt: skip
@click.option("--cors", multiple=True, metavar="ORIGIN",
              help="A site whose pages may use the API; * for all. Repeatable.")  # fmt: skip
@click.option("--drain-seconds", type=click.FloatRange(0, 86400), default=30.0, show_default=True,
              help="How long running requests may go on after SIGTERM.")  # fmt: skip
@click.option("--width", type=int, help="Block width that requests will ask for.")
@click.option("--weights", type=click.Choice(["auto", "stored", "dense"]), help="Form of weights.")
@numerics_option
def serve(
    model: str,
    drafter: str | None,
    host: str,
    port: int,
    workers: int,
    threads: int,
    socket: str | None,
    api_key_file: str | None,
    cors: tuple[str, ...],
    drain_seconds: float,
    width: int | None,
    weights: str | None,
    numerics: str | None,
) -> None:
    """Serve a model over HTTP: OpenAI's and Anthropic's APIs, and a page at /.

    SIGTERM and Ctrl-C end it in order: what runs is answered, new requests are refused. A second
    one ends it at once. Fields and statuses: docs/http.md.
    """
    _check_installed()
    settings = settings_for(width, weights=weights, numerics=numerics)
    spec = EngineSpec(
        target=model,
        drafter=drafter or default_drafter(model) or "lookup",
        settings=settings,
        drain_seconds=drain_seconds,
        log_level=logging.getLogger("mlxcel").level,
    )
    name = _model_name(model)
    with Listener(socket_path(socket, settings)) as listener:
        options = WebOptions(
            host=host, port=port, workers=workers, threads=threads, grace=drain_seconds,
            model_name=name, socket=str(listener.path), api_key_file=api_key_file, cors=cors,
        )  # fmt: skip
        with Web(options, os.environ) as web:
            show = Announcer(web.address, name, api_key_file)
            run_both(web, Supervisor(spec, listener, on_state=show))
