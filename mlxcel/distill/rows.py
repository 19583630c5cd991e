"""Which rows are written: the mixture of the training text, and the evaluation rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxcel.assets import standard_prompts
from mlxcel.distill.script import ChatFormat, Scripts, encode, read_prompts
from mlxcel.distill.seeds import HELD_OUT, training_prompts

__all__ = ["TEMPERATURES", "RowPlan", "evaluation_rows", "training_rows"]

TEMPERATURES = (0.0, 0.7, 1.0)
TURNS = 24  # more than fit into most rows
GIVEN = 12  # given prompts of a row
START = 5  # longest given start of a prompt, tokens
KINDS = ("self", "begun", "own", "ours")  # of rows, in turn
EXCHANGES = (1, 1, 1, 2)  # of a conversation, in turns: most people ask once
HELD_OUT_EVERY = 20  # of the user's own prompts
PLAIN_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Rows to be written.

    Attributes
    ----------
    scripts : Scripts
        What is forced.
    temperatures : float32 array, (rows,)
        Temperature of the answers.
    labels : list of str
        What each row is.
    """

    scripts: Scripts
    temperatures: npt.NDArray[np.float32]
    labels: list[str]


def own_prompts(options: Any) -> tuple[list[str], list[str]]:
    """The user's prompts: those to train on, and those held out."""
    if options.prompts is None:
        return [], []
    prompts = read_prompts(options.prompts)
    held = prompts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return [p for i, p in enumerate(prompts) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1], held


def training_rows(tokenizer: Any, options: Any, *, batch: int, rows: int, vocab: int) -> RowPlan:
    """Rows of one batch of training text; depends on the seed and the batch number only.

    A row is one conversation after the other, most with a single question. In a quarter of the
    rows the target writes them alone, in a quarter it answers given prompts of ours, which are
    soon all used up, and in the others it first completes a prompt of which it is given a few
    tokens; half of these are the user's own prompts instead, if there are any.

    Parameters
    ----------
    tokenizer : TokenizerWrapper
        The target's.
    options : Options
        Seed, length and prompts.
    batch, rows, vocab : int
        Number of the batch, its rows, and the size of the vocabulary.
    """
    form = ChatFormat.of(tokenizer)
    rng = np.random.default_rng([options.seed, 3, batch])
    temperatures = np.resize(np.array(TEMPERATURES, np.float32), rows)
    mine, _ = own_prompts(options)
    pools: dict[str, Sequence[list[int]]] = {"own": _encoded(tokenizer, mine, options.length // 2)}
    if form.chat:
        pools["ours"] = _given(tokenizer, options.seed, options.length // 2)
    scripts, labels = Scripts(), []
    for row in range(rows):
        label = _kind(row // len(TEMPERATURES), form.chat, bool(mine))
        labels.append(label)
        temperature = float(temperatures[row])
        exchanges = EXCHANGES[row // (len(KINDS) * len(TEMPERATURES)) % len(EXCHANGES)]
        if label == "self":
            scripts.add_conversations(form, temperature, exchanges, TURNS)
        elif label == "begun":
            pool = pools["ours"]
            drawn = zip(rng.integers(0, len(pool), TURNS), rng.integers(1, START + 1, TURNS),
                        strict=True)  # fmt: skip
            starts = [pool[i][:length] for i, length in drawn]
            scripts.add_begun(form, temperature, starts, exchanges)
        elif label == "plain":
            start = [[int(t)] for t in rng.integers(0, vocab, TURNS)]
            scripts.add_texts(form, temperature, start)
        else:
            pool = pools[label]
            chosen = [pool[i] for i in rng.integers(0, len(pool), GIVEN)]
            if form.chat:
                scripts.add_answers(form, temperature, chosen, exchanges)
            else:
                scripts.add_texts(form, temperature, chosen)
    return RowPlan(scripts, temperatures, labels)


@functools.lru_cache(maxsize=1)
def _given(tokenizer: Any, seed: int, most: int) -> Sequence[list[int]]:
    """Our prompts; encoding them takes longer than drawing from them."""
    return _encoded(tokenizer, training_prompts(seed), most)


def _kind(index: int, chat: bool, own: bool) -> str:
    if not chat:
        return "own" if own and index % 2 else "plain"
    kind = KINDS[index % len(KINDS)]
    return "begun" if kind == "own" and not own else kind


def _encoded(tokenizer: Any, prompts: Sequence[str], most: int) -> list[list[int]]:
    return [encode(tokenizer, prompt)[:most] for prompt in prompts]


def evaluation_rows(tokenizer: Any, options: Any, *, vocab: int) -> RowPlan:
    """Rows to evaluate on: held-out prompts at every temperature, the standard ones greedily."""
    form = ChatFormat.of(tokenizer)
    scripts, temperatures, labels = Scripts(), [], []
    _, held = own_prompts(options)
    prompts = [("own", p) for p in _encoded(tokenizer, held, options.length // 2)]
    if form.chat:
        ours = HELD_OUT[: options.eval_prompts]
        prompts += [("held-out", p) for p in _encoded(tokenizer, ours, options.length)]
    elif not prompts:
        rng = np.random.default_rng([options.seed, 4])
        prompts = [("plain", [int(t)]) for t in rng.integers(0, vocab, PLAIN_ROWS)]
    add = scripts.add_answers if form.chat else scripts.add_texts
    for temperature in TEMPERATURES:
        for label, prompt in prompts:
            add(form, temperature, [prompt])
            temperatures.append(temperature)
            labels.append(label)
    if form.chat:
        for name, text in standard_prompts().items():
            add(form, 0.0, [encode(tokenizer, text)])
            temperatures.append(0.0)
            labels.append(name)
    return RowPlan(scripts, np.array(temperatures, np.float32), labels)
