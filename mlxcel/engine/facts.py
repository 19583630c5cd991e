"""What a loaded model is and can do, for whoever serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine

__all__ = ["facts_of"]


def facts_of(engine: Engine) -> dict[str, Any]:
    """Names and abilities of the model.

    Returns
    -------
    dict
        JSON values: ``model`` (its name), ``drafter`` (its kind), ``drafter_weights`` (how they
        are held, in words; ``None`` without any), ``has_chat_template``, ``context`` (tokens;
        ``None``: unknown), ``vocabulary`` (ids), ``max_width``, and ``tool_calls``: ``None``, or
        the texts ``start`` and ``end`` between which the model writes a call (``end`` may be
        empty) and the ``start_ids``.
    """
    tokenizer = engine.model.tokenizer
    calls = None
    if getattr(tokenizer, "has_tool_calling", False):
        calls = {
            "start": str(tokenizer.tool_call_start),
            "end": str(tokenizer.tool_call_end),
            "start_ids": [int(token) for token in tokenizer.tool_call_start_tokens],
        }
    return {
        "model": engine.model.checkpoint.name,
        "drafter": "none" if engine.drafter is None else engine.drafter.kind,
        "drafter_weights": None if engine.drafter is None else engine.drafter.weights or None,
        "has_chat_template": bool(tokenizer.has_chat_template),
        "context": engine.model.target.context_length,
        "vocabulary": int(engine.model.target.vocab_size),
        "max_width": engine.settings.max_width,
        "tool_calls": calls,
    }
