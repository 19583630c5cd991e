"""``mlxcel demo``: prompts answered twice, classic and speculative, and both compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import click
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mlxcel.assets import standard_prompts
from mlxcel.cli.numerics import numerics_option, settings_for
from mlxcel.cli.progress import bar
from mlxcel.errors import ExactnessError
from mlxcel.llm import LLM, default_drafter, load
from mlxcel.types import Completion

SHOWN_LINES = 8


@dataclass(slots=True)
class Pair:
    """One prompt's runs by arm, ``"off"`` classic and ``"on"`` speculative."""

    name: str
    prompt: str
    arms: dict[str, list[Completion]] = field(default_factory=lambda: {"off": [], "on": []})

    @property
    def equal(self) -> bool:
        """Whether all runs gave the same ids and text."""
        runs = [*self.arms["off"], *self.arms["on"]]
        return all((c.token_ids, c.text) == (runs[0].token_ids, runs[0].text) for c in runs)

    def speed(self, arm: str) -> float:
        """Tokens per second, the median of the runs."""
        return median(c.speculation.tokens_per_second for c in self.arms[arm])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="demo", show_default=True, help="Folder, hub id, GGUF, demo.")
@click.option("--drafter", help="demo, lookup, mtp, a distilled folder, a Gemma 4 assistant, "
              "an EAGLE head, or a draft model (default: demo for the model demo, lookup for "
              "any other).")  # fmt: skip
@click.option("--prompt", help="A prompt of your own in place of the three standard ones.")
@click.option("--width", type=int, default=4, show_default=True, help="Block width K.")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Of each answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True,
              help="Timed pairs of each prompt.")  # fmt: skip
@numerics_option
def demo(
    model: str,
    drafter: str | None,
    prompt: str | None,
    width: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    repeats: int,
    numerics: str | None,
) -> None:
    """Answer prompts classic and speculative with one seed, and compare.

    The prompts are the three standard ones: enumeration, code and prose.
    """
    console = Console()
    drafter = drafter or default_drafter(model) or "lookup"
    with bar() as progress:
        settings = settings_for(width, numerics=numerics)
        llm = load(model, drafter, config=settings, progress=progress)
    prompts = standard_prompts() if prompt is None else {"prompt": prompt}
    pairs = [Pair(name, text) for name, text in prompts.items()]
    with llm:
        kind = llm.call(lambda engine: engine.model.representation.summary)
        console.print(f"[bold]{model}[/bold], weights {kind}")
        console.print(f"drafter {drafter}, width {width}, {settings.numerics} numerics")
        request = {"temperature": temperature, "seed": seed}
        for arm in ("off", "on"):  # the first requests of a process are slower
            _answer(llm, pairs[0].prompt, arm, width, max_tokens=4, **request)
        for pair in pairs:
            for repeat in range(repeats):
                for arm in ("off", "on") if repeat % 2 == 0 else ("on", "off"):
                    done = _answer(llm, pair.prompt, arm, width, max_tokens=max_tokens, **request)
                    pair.arms[arm].append(done)
            console.print(_panel(pair))
        left_alone = _answer(llm, pairs[0].prompt, "auto", width, max_tokens=max_tokens, **request)
    console.print(_table(pairs))
    runs = "speculates" if left_alone.speculation.ran else "runs classic"
    console.print(f"verdict of the gate: a request {runs}: {left_alone.speculation.reason}")
    if not all(pair.equal for pair in pairs):
        raise ExactnessError("two answers differ: please report this with the prompt and seed")
    console.print("The answers are equal, token for token.")


def _answer(llm: LLM, prompt: str, arm: str, width: int, **params: float) -> Completion:
    messages = [{"role": "user", "content": prompt}]
    return llm.generate(messages, speculation=arm, width=width, **params)  # type: ignore[arg-type]


def _panel(pair: Pair) -> Panel:
    lines = pair.arms["on"][0].text.strip().splitlines()
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES - 1 :] = [f"... ({len(lines) - SHOWN_LINES + 1} more lines)"]
    return Panel(Text("\n".join(lines)), title=pair.name)


def _table(pairs: list[Pair]) -> Table:
    table = Table(title="classic against speculative, same seed")
    table.add_column("")
    for pair in pairs:
        table.add_column(pair.name, justify="right")
    columns = [_figures(pair) for pair in pairs]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _figures(pair: Pair) -> dict[str, str]:
    """What the table says about a prompt, by row."""
    last = pair.arms["on"][-1]
    stats = last.speculation
    slow, fast = pair.speed("off"), pair.speed("on")
    speedup = fast / slow if slow else 0.0
    cost = stats.emitted_per_verify / speedup if speedup else 0.0
    return {
        "tokens": str(last.usage.completion_tokens),
        "verify passes": str(stats.rounds),
        "acceptance": f"{stats.acceptance:.2f}",
        "tokens per verify": f"{stats.emitted_per_verify:.2f}",
        "round cost (classic steps)": f"{cost:.2f}",
        "classic tok/s": f"{slow:.1f}",
        "speculative tok/s": f"{fast:.1f}",
        "speed-up": f"{speedup:.2f}",
        "token ids": "equal" if pair.equal else "DIFFER",
    }
