"""Prompts in their three kinds, and their token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlxcel.errors import RequestError

__all__ = ["Prompt", "encode_prompt", "parse_tool_call", "plain_prompt", "token_texts"]

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


def encode_prompt(tokenizer: Any, prompt: Prompt, tools: Sequence[Any] = ()) -> tuple[int, ...]:
    """Token ids of a prompt; chat messages go through the chat template.

    Parameters
    ----------
    tokenizer : TokenizerWrapper
        mlx-lm's.
    prompt : Prompt
        What to encode.
    tools : sequence of dict
        Descriptions of functions for the chat template.

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
    options: dict[str, Any] = {"tools": list(tools)} if tools else {}
    try:
        return tuple(tokenizer.apply_chat_template(plain, add_generation_prompt=True, **options))
    except Exception as error:  # templates raise what they like
        message = f"the chat template refuses the messages: {error}"
        raise RequestError(message, param="messages") from error


def token_texts(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    """Text of each token by itself; half a character is U+FFFD."""
    return [str(tokenizer.decode([token])) for token in token_ids]


def parse_tool_call(tokenizer: Any, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Calls in a text that the model wrote between its marks of a tool call.

    Parameters
    ----------
    tokenizer : TokenizerWrapper
        mlx-lm's, which knows the model's form of calls.
    text : str
        Without the marks.
    tools : sequence of dict
        What the request offered.

    Returns
    -------
    list of dict
        ``name`` (str) and ``arguments`` (dict) of each.

    Raises
    ------
    RequestError
        It is no call, or only a part of one; or the model has no form for calls.
    """
    if not getattr(tokenizer, "has_tool_calling", False):
        raise RequestError("the model has no known form for tool calls", param="tools")
    try:
        parsed = tokenizer.tool_parser(text, list(tools))
    except Exception as error:  # parsers raise what they like
        raise RequestError(f"no tool call: {error}", param="tools") from error
    found = []
    for call in parsed if isinstance(parsed, list) else [parsed]:
        name = call.get("name") if isinstance(call, Mapping) else None
        arguments = call.get("arguments", {}) if isinstance(call, Mapping) else None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise RequestError(f"no tool call: {call!r:.200}", param="tools")
        found.append({"name": name, "arguments": dict(arguments)})
    return found
