"""What the fake server says: tokens with their origin, timings, the gate's figures.

Pure. Figures have the proportions of a real pairing, so that screenshots look like one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ANSWER = (
    "Here is a Python function that returns the n-th Fibonacci number:\n\n"
    "def fibonacci(n):\n"
    '    """Return the n-th Fibonacci number, counted from 0."""\n'
    "    if n < 0:\n"
    '        raise ValueError("n must not be negative")\n'
    "    a, b = 0, 1\n"
    "    for _ in range(n):\n"
    "        a, b = b, a + b\n"
    "    return a\n\n"
    "It keeps only the last two numbers, so it needs little memory. "
    "Each step takes one addition: the time grows with n."
)
HOSTILE = (
    "x" * 400
    + " <b>bold</b> <img src=x onerror=document.title='run'> </span> &amp; é 漢字 👩\u200d👧"
)
"""A long word, markup, and characters of several code points."""

PIECE = 4
"""Characters of a token."""

TAKEN = (3, 2, 0, 3, 1, 3, 1, 0, 2, 1)
"""Drafts accepted by round, over and over."""

GATE_REASON = (
    "measured 1.85x over 4 bursts (2.59 emitted per verify, classic step 46.0 ms, "
    "round 64.4 ms): at least 1.5 enables"
)


COSTS = (
    (1, 1.00, 1.00),
    (2, 1.22, 1.72),
    (3, 1.31, 2.21),
    (4, 1.40, 2.59),
    (5, 1.62, 2.78),
    (6, 1.84, 2.91),
    (8, 2.31, 3.04),
)
"""Width, cost of a round in classic steps, tokens per verify."""


@dataclass
class Script:
    """How the server behaves; tests set the fields.

    ``ending`` is how a stream ends: "done", "error" (an event), "cut" (no ``[DONE]``), "break"
    (the connection is closed within a chunk), "junk" (no JSON) or "hang" (keep-alive comments
    until the client goes). ``after`` tokens come before any but the first. ``step`` is the
    seconds of a classic step, ``cost`` those of a round in steps.
    """

    text: str = ANSWER
    other_text: str | None = None
    step: float = 0.002
    cost: float = 1.4
    width: int = 4
    ending: str = "done"
    after: int = 12
    refusal: tuple[int, dict[str, Any], dict[str, str]] | None = None
    key: str = ""
    health: tuple[int, dict[str, Any]] = (200, {"status": "ok", "model": "demo"})
    policy: dict[str, Any] = field(default_factory=dict)
    flags: bool = True


def tokens_of(text: str) -> list[dict[str, Any]]:
    """The text as tokens of a few characters, the same ids for the same piece."""
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return [{"id": sum(map(ord, piece)) + 31 * len(piece), "text": piece} for piece in pieces]


def rounds_of(tokens: list[dict[str, Any]], width: int) -> Iterator[list[dict[str, Any]]]:
    """Tokens by round, flagged: the first by the prompt pass, then drafts and one of the target."""
    yield [tokens[0] | {"drafted": False}]
    at, turn = 1, 0
    while at < len(tokens):
        taken = min(TAKEN[turn % len(TAKEN)], width - 1)
        block = tokens[at : at + taken + 1]
        yield [token | {"drafted": place < taken} for place, token in enumerate(block)]
        at, turn = at + len(block), turn + 1


def decision_of(speculation: str, width: int) -> dict[str, Any]:
    """The decision as the engine words it."""
    source, reason = {
        "auto": ("policy", GATE_REASON),
        "on": ("request", "the request asked for it"),
        "off": ("request", "the request turned speculation off"),
    }[speculation]
    return {"run": width > 1, "source": source, "reason": reason, "width": width}


def timings_of(
    blocks: list[list[dict[str, Any]]], seconds: float, width: int, speculation: str
) -> dict[str, Any]:
    """Timings of a finished answer, as the API has them."""
    count, rounds = sum(map(len, blocks)), len(blocks) - 1
    drafted = sum(token["drafted"] for block in blocks for token in block)
    found: dict[str, Any] = {
        "prompt_n": 21,
        "prompt_ms": 118.4,
        "predicted_n": count,
        "predicted_ms": seconds * 1e3,
        "predicted_per_second": (count - 1) / seconds,
        "queue_ms": 0.2,
        "decision": decision_of(speculation, width),
    }
    if width > 1:
        found |= {
            "draft_n": rounds * (width - 1),
            "draft_n_accepted": drafted,
            "draft_rounds": rounds,
            "draft_kind": "mtp",
            "draft_width": width,
            "draft_widths": {str(width): rounds},
        }
    return found


def measured_policy() -> dict[str, Any]:
    """The answer of /v1/internal/mtp-policy of an engine that has worked for a while."""
    step = 0.046
    arms = [(width, step * cost, emitted) for width, cost, emitted in COSTS]
    widths = [
        {
            "width": width,
            "rounds": 640 if width == 4 else 48,
            "tokens_per_second": emitted / seconds,
            "emitted_per_verify": emitted,
            "measured_emitted_per_verify": emitted,
            "measured_seconds": seconds,
        }
        for width, seconds, emitted in arms
    ]
    untried = {
        "width": 7, "rounds": 0, "tokens_per_second": 31.0, "emitted_per_verify": 2.98,
        "measured_emitted_per_verify": None, "measured_seconds": None,
    }  # fmt: skip
    policy = {
        "state": "settled",
        "run": True,
        "reason": GATE_REASON,
        "veto": None,
        "width": 4,
        "samples": 4,
        "samples_required": 4,
        "samples_remaining": 0,
        "zone": "enable",
        "speedup": 1.85,
        "emitted_per_verify": 2.59,
        "round_cost": 1.40,
        "controller": {"width": 4, "parked": False, "rounds": 928, "widths": [*widths, untried]},
    }
    return {"policies": [policy], "load_widths": None}
