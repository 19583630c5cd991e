"""Prompts of mixed lengths out of ordinary text; the same ones for every arm."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

__all__ = ["long_prompt", "mixed_prompts"]


def _text(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    return [int(token) for token in tokenizer.encode("\n\n".join(texts))]


def long_prompt(tokenizer: Any, texts: Sequence[str], tokens: int) -> list[int]:
    """The texts over and over, cut after so many tokens."""
    once = _text(tokenizer, texts)
    return (once * (-(-tokens // len(once))))[:tokens]


def mixed_prompts(
    tokenizer: Any,
    texts: Sequence[str],
    count: int,
    *,
    seed: int,
    shortest: int = 16,
    longest: int = 400,
) -> list[list[int]]:
    """Prompts that ask for an answer: the texts as chats, and cuts of random length in turn.

    Parameters
    ----------
    tokenizer
        The target's; with a chat template if it has one.
    texts : sequence of str
        What to ask, and what to cut from.
    count : int
        Prompts wanted.
    seed : int
        Of lengths and places.
    shortest, longest : int
        Bounds of the cuts, in tokens.

    Returns
    -------
    list of list of int
        Token ids.
    """
    rng = random.Random(seed)
    chats = [_chat(tokenizer, text) for text in texts]
    body = long_prompt(tokenizer, texts, 2 * longest)
    prompts = []
    for index in range(count):
        if index % 2 == 0:
            prompts.append(chats[index // 2 % len(chats)])
            continue
        length = rng.randint(shortest, longest)
        begin = rng.randrange(len(body) - length)
        prompts.append(body[begin : begin + length])
    return prompts


def _chat(tokenizer: Any, text: str) -> list[int]:
    if not tokenizer.has_chat_template:
        return _text(tokenizer, [text])
    messages = [{"role": "user", "content": text}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return [int(token) for token in ids]
