"""``mlxcel demo``: the demo model answers twice, classic and speculative, and both are compared."""

from __future__ import annotations

from statistics import median

import click
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from mlxcel.cli.progress import bar
from mlxcel.config import Settings
from mlxcel.errors import ExactnessError
from mlxcel.llm import load
from mlxcel.types import Completion

PROMPT = """Add a docstring to this Python class. Print the whole class again, otherwise unchanged.

class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="demo", show_default=True, help="Folder, hub id, GGUF, demo.")
@click.option("--drafter", default="lookup", show_default=True, help="lookup, or a model.")
@click.option("--prompt", default=PROMPT, help="A prompt of your own.")
@click.option("--width", type=int, default=8, show_default=True, help="Block width K.")
@click.option("--max-tokens", type=int, default=120, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--repeats", type=int, default=2, show_default=True, help="Timed pairs.")
def demo(
    model: str,
    drafter: str,
    prompt: str,
    width: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    repeats: int,
) -> None:
    """Answer one prompt classic and speculative with one seed, and compare."""
    console = Console()
    with bar() as progress:
        llm = load(model, drafter, config=Settings.from_env(), progress=progress)
    with llm:
        kind = llm.call(lambda engine: engine.model.representation.summary)
        console.print(f"[bold]{model}[/bold], weights {kind}; drafter {drafter}, width {width}")
        messages = [{"role": "user", "content": prompt}]
        arms: dict[str, list[Completion]] = {"off": [], "on": []}
        for repeat in range(max(repeats, 1)):
            for arm in ("off", "on") if repeat % 2 == 0 else ("on", "off"):
                completion = llm.generate(
                    messages,
                    speculation="on" if arm == "on" else "off",
                    width=width,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed,
                )
                arms[arm].append(completion)
    _show(console, arms)


def _show(console: Console, arms: dict[str, list[Completion]]) -> None:
    classic, speculative = arms["off"][-1], arms["on"][-1]
    console.print(Panel(classic.text.strip(), title="answer"))
    stats = speculative.speculation
    slow = median(c.speculation.tokens_per_second for c in arms["off"])
    fast = median(c.speculation.tokens_per_second for c in arms["on"])
    speedup = fast / slow if slow else 0.0
    cost = stats.emitted_per_verify / speedup if speedup else 0.0
    table = Table(title="classic against speculative, same seed")
    for column in ("", "classic", "speculative"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("tokens", *(str(c.usage.completion_tokens) for c in (classic, speculative)))
    table.add_row("verify passes", str(classic.speculation.rounds), str(stats.rounds))
    table.add_row("tokens per second", f"{slow:.1f}", f"{fast:.1f}")
    table.add_row("acceptance", "", f"{stats.acceptance:.2f}")
    table.add_row("tokens per verify", "1.00", f"{stats.emitted_per_verify:.2f}")
    table.add_row("width used", "1", f"{stats.width_min} to {stats.width_max}")
    table.add_row("round cost (classic steps)", "1.00", f"{cost:.2f}")
    table.add_row("speed-up", "1.00", f"{speedup:.2f}")
    console.print(table)
    equal = all(
        c.token_ids == classic.token_ids and c.text == classic.text
        for arm in arms.values()
        for c in arm
    )
    if not equal:
        raise ExactnessError("the two answers differ: please report this with the prompt and seed")
    console.print("The answers are equal, token for token.")
