"""``mlxcel generate``: one prompt, streamed to the terminal or as one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.cli.progress import bar
from mlxcel.errors import RequestError
from mlxcel.front import Front, Prompt, default_drafter
from mlxcel.remote.client import EngineClient
from mlxcel.types import Completion

OF_THE_ENGINE = ("model", "drafter", "weights", "numerics")


def load(*args: Any, **options: Any) -> Front:
    """`mlxcel.load`, imported when it is called: a client needs no MLX."""
    from mlxcel.llm import load

    return load(*args, **options)


def _parse_bias(pairs: tuple[str, ...]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise RequestError(
                f"--logit-bias takes TOKEN_ID=NUMBER, got {pair!r}", param="logit_bias"
            ) from None
    return bias


def _client(path: str) -> Front:
    """A running engine; what it was started with cannot be asked for again."""
    context = click.get_current_context()
    for name in OF_THE_ENGINE:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is the engine's own: leave it out with --socket")
    with bar() as progress:
        return EngineClient(path, progress=progress)


def _prompt(llm: Front, text: str, chat: bool | None) -> Prompt:
    """Wrap text as a chat turn if asked, or if the model has a template and nobody said no."""
    if chat is None:
        chat = llm.has_chat_template
    return [{"role": "user", "content": text}] if chat else text


def summary(completion: Completion) -> str:
    """One line about a completion."""
    stats, usage = completion.speculation, completion.usage
    line = (
        f"{usage.prompt_tokens} prompt tokens in {stats.prefill_seconds:.2f} s, "
        f"{usage.completion_tokens} tokens at {stats.tokens_per_second:.1f} tok/s, "
        f"finish {completion.finish_reason}, seed {completion.seed}; "
    )
    if not stats.ran:
        return f"{line}no speculation: {stats.reason}"
    return (
        f"{line}{stats.kind} drafter: acceptance {stats.acceptance:.2f}, "
        f"{stats.emitted_per_verify:.2f} tokens per verify, "
        f"width {stats.width_min} to {stats.width_max}"
        + (f", {stats.width_mean:.1f} on average" if completion.decision.steered else "")
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", "-m", default="demo", show_default=True, help="Folder, hub id, GGUF.")
@click.option("--prompt", "-p", required=True, help="The prompt; - reads standard input.")
@click.option("--chat/--raw", default=None, help="Chat template (default: if there is one).")
@click.option("--speculation", type=click.Choice(["auto", "on", "off"]), default="auto")
@click.option("--drafter", help="demo, lookup, mtp, none, a distilled folder, a Gemma 4 assistant, "
              "an EAGLE head, or a draft model (default: demo for the model demo, lookup for "
              "any other).")  # fmt: skip
@click.option("--width", type=int, help="Block width K: 1 bonus token and K-1 drafts.")
@click.option("--max-tokens", "-n", type=int, default=256, show_default=True)
@click.option("--temperature", "-t", type=float, default=0.0, show_default=True)
@click.option("--top-k", type=int, default=0, help="0 keeps all.")
@click.option("--top-p", type=float, default=1.0)
@click.option("--min-p", type=float, default=0.0)
@click.option("--repetition-penalty", type=float, default=1.0)
@click.option("--presence-penalty", type=float, default=0.0)
@click.option("--frequency-penalty", type=float, default=0.0)
@click.option("--logit-bias", multiple=True, metavar="ID=VALUE", help="May be repeated.")
@click.option("--seed", type=int, help="0 is a seed; without one a random seed is reported.")
@click.option("--stop", multiple=True, help="Text that ends the output; may be repeated.")
@click.option("--logprobs", type=int, help="Log-probabilities with so many alternatives (--json).")
@click.option("--weights", type=click.Choice(["auto", "stored", "dense"]), help="Form of weights.")
@numerics_option
@click.option("--socket", metavar="PATH", help="Ask the engine that `mlxcel engine` runs there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def generate(
    model: str,
    prompt: str,
    chat: bool | None,
    speculation: Any,
    drafter: str | None,
    width: int | None,
    logit_bias: tuple[str, ...],
    weights: str | None,
    numerics: str | None,
    socket: str | None,
    as_json: bool,
    **params: Any,
) -> None:
    """Generate text from a model.

    The text goes to standard output as it comes, one line about the run to standard error.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    params |= {"logit_bias": _parse_bias(logit_bias), "stop": tuple(params["stop"])}
    if socket is not None:
        llm = _client(socket)
    else:
        settings = settings_for(width, weights=weights, numerics=numerics)
        drafter = drafter or default_drafter(model) or "lookup"
        with bar() as progress:
            llm = load(model, drafter, config=settings, progress=progress)
    with llm:
        chunks = llm.stream(
            _prompt(llm, text, chat), speculation=speculation, width=width, **params
        )
        for chunk in chunks:
            if not as_json:
                click.echo(chunk.text, nl=False)
            completion = chunk.completion
    assert completion is not None
    if completion.finish_reason == "error" and not as_json:
        raise completion.failure()
    if as_json:
        click.echo(json.dumps(completion.to_dict(), ensure_ascii=False))
    else:
        click.echo()
        click.echo(summary(completion), err=True)
    if completion.finish_reason == "error":
        raise SystemExit(2)
