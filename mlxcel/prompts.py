"""Prompts in their three kinds, and their token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlxcel.errors import RequestError

__all__ = ["Prompt", "encode_prompt", "plain_prompt"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``)."""


def plain_prompt(prompt: Prompt) -> str | list[int] | list[dict[str, Any]]:
    """A prompt as text, a list of ids or a list of messages.

    Raises
    ------
    RequestError
        It is of another kind.
    """
    if isinstance(prompt, str):
        return prompt
    kinds = "a prompt is text, token ids, or chat messages"
    if not isinstance(prompt, Iterable):
        raise RequestError(f"{kinds}, got {prompt!r}", param="prompt")
    items: list[Any] = list(prompt)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return [int(item) for item in items]
    if not all(isinstance(item, Mapping) for item in items):
        raise RequestError(f"{kinds}, not a mixture", param="prompt")
    return [dict(item) for item in items]


def encode_prompt(tokenizer: Any, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of a prompt; chat messages go through the chat template.

    Parameters
    ----------
    tokenizer : TokenizerWrapper
        mlx-lm's.
    prompt : Prompt
        What to encode.

    Raises
    ------
    RequestError
        The prompt is of another kind, or the template refuses the messages.
    """
    plain = plain_prompt(prompt)
    if isinstance(plain, str):
        return tuple(tokenizer.encode(plain))
    if not plain or isinstance(plain[0], int):
        return tuple(plain)  # type: ignore[arg-type]
    if not tokenizer.has_chat_template:
        raise RequestError("the model has no chat template: give text", param="messages")
    try:
        return tuple(tokenizer.apply_chat_template(plain, add_generation_prompt=True))
    except Exception as error:  # templates raise what they like
        message = f"the chat template refuses the messages: {error}"
        raise RequestError(message, param="messages") from error
