"""What a response says about its tokens: usage, timings, log-probabilities. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxcel.types import Chunk, Completion, TokenLogprob

__all__ = [
    "LOWEST",
    "chat_logprobs",
    "ids_of",
    "text_logprobs",
    "timings",
    "tokens_of",
    "usage",
]

LOWEST = -9999.0
"""Stands for log-probabilities that JSON cannot write, as at OpenAI."""

Texts = Mapping[int, str]


def usage(done: Sequence[Completion], prompts: Sequence[int]) -> dict[str, Any]:
    """Token counts in OpenAI's form.

    Parameters
    ----------
    done : sequence of Completion
        All choices.
    prompts : sequence of int
        Which of them stand for a prompt: several choices of one prompt count it once.
    """
    prompt = sum(done[at].usage.prompt_tokens for at in prompts)
    completion = sum(each.usage.completion_tokens for each in done)
    proposed = sum(each.speculation.proposed for each in done)
    accepted = sum(each.speculation.accepted for each in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(done[at].usage.cached_tokens for at in prompts)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def timings(done: Sequence[Completion]) -> dict[str, Any]:
    """Where the time went and what speculation did; several choices are added up.

    Times are milliseconds: the longest of the choices, which run beside each other. The
    decision is the first choice's.
    """
    stats = [each.speculation for each in done]

    def longest(seconds: Callable[[Any], float]) -> float:
        return round(max(map(seconds, stats)) * 1000.0, 3)

    widths: dict[int, int] = {}
    for each in stats:
        for width, count in each.widths:
            widths[width] = widths.get(width, 0) + count
    rounds = sum(widths.values())
    predicted_ms = longest(lambda each: each.decode_seconds)
    emitted = sum(each.emitted_from_verify for each in stats)
    first, cached = done[0], sum(each.usage.cached_tokens for each in done)
    return {
        "prompt_n": sum(each.usage.prompt_tokens for each in done) - cached,
        "cached_n": cached,
        "prompt_ms": longest(lambda each: each.prefill_seconds),
        "predicted_n": sum(each.usage.completion_tokens for each in done),
        "predicted_ms": predicted_ms,
        "predicted_per_second": round(emitted / predicted_ms * 1000, 3) if predicted_ms else 0.0,
        "queue_ms": longest(lambda each: each.queue_seconds),
        "draft_n": sum(each.proposed for each in stats),
        "draft_n_accepted": sum(each.accepted for each in stats),
        "draft_rounds": sum(each.rounds for each in stats),
        "draft_kind": first.speculation.kind,
        "draft_width": round(sum(w * n for w, n in widths.items()) / rounds, 3) if rounds else 0.0,
        "draft_widths": {str(width): count for width, count in sorted(widths.items())},
        "decision": {
            "run": first.decision.run,
            "source": first.decision.source,
            "reason": first.decision.reason,
            "width": first.decision.width,
            "ran": first.speculation.ran,
            "outcome": first.speculation.reason,
        },
    }


def tokens_of(chunk: Chunk) -> list[dict[str, Any]]:
    """A chunk's tokens, the drafted ones marked; ``text`` is what came with each."""
    pieces = chunk.pieces or ("",) * len(chunk.token_ids)
    return [
        {"id": token, "text": text, "drafted": drafted}
        for token, text, drafted in zip(chunk.token_ids, pieces, chunk.drafted, strict=True)
    ]


def ids_of(logprobs: Sequence[TokenLogprob]) -> set[int]:
    """All token ids that log-probabilities speak of."""
    return {each.token_id for each in logprobs} | {
        token for each in logprobs for token, _ in each.top
    }


def chat_logprobs(logprobs: Sequence[TokenLogprob], texts: Texts) -> dict[str, Any]:
    """In the form of chat completions."""
    return {
        "content": [
            _entry(each.token_id, each.logprob, texts)
            | {"top_logprobs": [_entry(token, value, texts) for token, value in each.top]}
            for each in logprobs
        ],
        "refusal": None,
    }


def text_logprobs(
    logprobs: Sequence[TokenLogprob], texts: Texts, pieces: Sequence[str], offset: int
) -> dict[str, Any]:
    """In the form of completions.

    Parameters
    ----------
    logprobs : sequence of TokenLogprob
        Of some tokens.
    texts : mapping of int to str
        Text of each token by itself.
    pieces : sequence of str
        What came with each of the tokens.
    offset : int
        Characters of the answer before them.
    """
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    top = [{texts[token]: _finite(value) for token, value in each.top} for each in logprobs]
    return {
        "tokens": [texts[each.token_id] for each in logprobs],
        "token_logprobs": [_finite(each.logprob) for each in logprobs],
        "top_logprobs": top if any(top) else None,
        "text_offset": offsets,
    }


def _entry(token: int, value: float, texts: Texts) -> dict[str, Any]:
    text = texts[token]
    # Half a character has no text of its own, so its bytes are not known here.
    data = None if "\ufffd" in text else list(text.encode("utf-8"))
    return {"token": text, "logprob": _finite(value), "bytes": data}


def _finite(value: float) -> float:
    return max(value, LOWEST) if value == value else LOWEST
