"""Measured records as JSON, with raw samples that a seed draws: two campaigns to compare."""

from __future__ import annotations

import hashlib
import random
import statistics
from typing import Any

__all__ = ["measured_value"]

_TOKENS = 120


def _run(arm: str, speed: float, at: float, text: str) -> dict[str, Any]:
    rounds = _TOKENS if arm == "classic" else _TOKENS // 3
    accepted = _TOKENS - rounds
    per_place = [] if arm == "classic" else [accepted // 2, accepted - accepted // 2, 0]
    return {
        "arm": arm,
        "tokens": _TOKENS,
        "seconds": _TOKENS / speed,
        "rounds": rounds,
        "proposed": 0 if arm == "classic" else 3 * rounds,
        "accepted": accepted,
        "width_min": 1 if arm == "classic" else 4,
        "width_max": 1 if arm == "classic" else 4,
        "ids_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "started_s": at,
        "accepted_by_position": per_place,
        "profiling": False,
    }


def _row(
    prompt: str,
    classic: float,
    speculative: float,
    draw: random.Random,
    blocks: int,
    **changes: Any,
) -> dict[str, Any]:
    at = 0.0
    noise, text = changes.pop("noise", 0.005), changes.pop("text", prompt)
    drift = changes.pop("drift", 0.0)

    def timed(arm: str) -> dict[str, Any]:
        nonlocal at
        speed = (classic if arm == "classic" else speculative) * (1 + noise * draw.uniform(-1, 1))
        run = _run(arm, speed, at, text)
        at += run["seconds"] + 1
        return run

    first = _run("classic", classic, at, text)
    at += first["seconds"] + 1
    order = ("classic", "speculative", "speculative", "classic")
    pairs = [[timed(arm) for arm in order] for _ in range(blocks)]
    last = _run("classic", classic * (1 + drift), at, text)
    speeds = {
        arm: [r["tokens"] / r["seconds"] for block in pairs for r in block if r["arm"] == arm]
        for arm in ("classic", "speculative")
    }
    slow, fast = (statistics.median(speeds[arm]) for arm in ("classic", "speculative"))
    row = {
        "prompt": prompt,
        "tokens": _TOKENS,
        "requested_width": 4,
        "effective_width": 4,
        "emitted_per_verify": 3.0,
        "classic_tok_s": slow,
        "speculative_tok_s": fast,
        "speedup": fast / slow,
        "raw": {"pairs": pairs, "null": [first, last]},
        "publishable": True,
        "reasons": [],
    }
    return row | changes


def measured_value(
    name: str = "one",
    *,
    classic: float = 20.0,
    speculative: float = 40.0,
    seed: int = 1,
    blocks: int = 3,
    prompts: tuple[str, ...] = ("code", "prose"),
    row: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A record, with what a comparison reads of it.

    Parameters
    ----------
    classic, speculative : float
        True speeds in tokens per second, around which samples are drawn.
    blocks : int
        ABBA blocks of a row.
    row : dict
        Changed fields of every row, and ``noise``, ``drift`` (of the null arm) and ``text``.
    provenance, **changes
        Changed fields of provenance and record.
    """
    draw = random.Random(seed)
    value: dict[str, Any] = {
        "schema": 2,
        "id": name,
        "origin": "measured",
        "host": {"chip": "CPU Intel Xeon", "generation": None, "memory_gb": 16.0},
        "pairing": {
            "name": "SmolLM2 135M", "kind": "mtp", "target": "demo", "drafter": "demo",
            "target_quantization": "4-bit", "drafter_quantization": None, "batch_capable": True,
        },
        "protocol": "guarded",
        "round_loop": 1,
        "rows": [
            _row(prompt, classic, speculative, draw, blocks, **(row or {})) for prompt in prompts
        ],
        "timings": [],
        "provenance": {
            "memory_bytes": 16 * 2**30,
            "system": "Debian 12 (x86_64)",
            "python": "3.11.9",
            "versions": {"mlxcel": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
            "commit": "0" * 40,
            "dirty": False,
            "environment": {},
            "blas": "OpenBLAS",
            "kernel": {"form": "stored", "verdict": "wide"},
            "exactness": {"level": "bitwise", "reason": "equal"},
            "started": "2026-11-30T21:05:00Z",
            "round_loop": 1,
            "cost_only": False,
            "drafts": "proposed",
        }
        | (provenance or {}),
    }  # fmt: skip
    assert changes.keys() <= value.keys()
    return value | changes
