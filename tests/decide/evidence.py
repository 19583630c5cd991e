"""Made-up records for the tests of decisions: one campaign in one call."""

from __future__ import annotations

from typing import Any

from mlxcel.decide.record_json import parse_record
from mlxcel.decide.records import Record

CHIPS = {
    "M1": "Apple M1 Ultra",
    "M2": "Apple M2 Max",
    "M3": "Apple M3 Ultra",
    "M4": "Apple M4 Max",
    "M5": "Apple M5 Max",
}
ROW = {
    "prompt": "code",
    "tokens": 300,
    "requested_width": 4,
    "effective_width": None,
    "accepted": None,
    "proposed": None,
    "acceptance": None,
    "emitted_per_verify": None,
    "classic_tok_s": None,
    "speculative_tok_s": None,
    "speedup": None,
    "spread_percent": None,
    "n": None,
    "classic_samples": None,
    "speculative_samples": None,
    "note": None,
}


def row(**changes: Any) -> dict[str, Any]:
    """A row as JSON; all that is not given is null, but prompt, tokens and width."""
    assert changes.keys() <= ROW.keys()
    return ROW | changes


def campaign(
    name: str = "a", host: str = "M3", rows: Any = (), pairing: str = "Gemma 4 31B", **changes: Any
) -> dict[str, Any]:
    """A record as JSON, published and current unless ``changes`` say otherwise."""
    speeds = [row(speedup=x, prompt=f"p{i}") for i, x in enumerate(rows) if not isinstance(x, dict)]
    value: dict[str, Any] = {
        "schema": 1,
        "id": name,
        "origin": "published",
        "address": "some/where#1",
        "date": "2026-09-01",
        "host": {
            "chip": CHIPS.get(host, host),
            "generation": host if host in CHIPS else None,
            "memory_gb": None,
        },
        "pairing": {
            "name": pairing,
            "kind": "mtp",
            "target": "t",
            "drafter": "d",
            "target_quantization": "4-bit",
            "drafter_quantization": None,
            "batch_capable": pairing != "Gemma 4 12B",
        },
        "protocol": "guarded",
        "tool": None,
        "exactness": "inexact-wide",
        "round_loop": "another engine",
        "includes": [],
        "versions": {},
        "classic_from": None,
        "rows": speeds + [x for x in rows if isinstance(x, dict)],
        "fits": [],
        "timings": [],
        "notes": None,
    }
    assert changes.keys() <= value.keys()
    return value | changes


def record(*args: Any, **kwargs: Any) -> Record:
    """The same, read."""
    return parse_record(campaign(*args, **kwargs))


def measured(version: int, *args: Any, **kwargs: Any) -> Record:
    """A record of this project, taken with some version of the round loop."""
    return record(*args, **{"origin": "measured", "address": None, **kwargs}, round_loop=version)
