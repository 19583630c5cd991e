"""Made-up raw samples: a row in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from mlxcel.decide.raw_runs import RawRow, Run

SAME = hashlib.sha256(b"1,2,3").hexdigest()
OTHER = hashlib.sha256(b"1,2,4").hexdigest()
PASSED = {
    "quiet": {"ran": True, "passed": True},
    "contention": {"ran": True, "passed": True},
}


def classic(speed: float, started: float, **changes: Any) -> Run:
    """A classic run of 40 tokens at so many tokens per second."""
    values: dict[str, Any] = {
        "arm": "classic", "tokens": 40, "seconds": 40 / speed, "rounds": 40, "proposed": 0,
        "accepted": 0, "width_min": 1, "width_max": 1, "ids_sha256": SAME, "started_s": started,
        "accepted_by_position": (),
    }  # fmt: skip
    return Run(**values | changes)


def speculative(speed: float, started: float, **changes: Any) -> Run:
    """A speculative run at width 4: 40 tokens in 16 rounds, 24 of 48 drafts accepted."""
    values: dict[str, Any] = {
        "arm": "speculative", "tokens": 40, "seconds": 40 / speed, "rounds": 16, "proposed": 48,
        "accepted": 24, "width_min": 4, "width_max": 4, "ids_sha256": SAME, "started_s": started,
        "accepted_by_position": (14, 8, 2),
    }  # fmt: skip
    return Run(**values | changes)


def raw_row(
    blocks: Sequence[tuple[float, float, float, float]] = ((10, 20, 20, 10),) * 3,
    null: tuple[float, float] = (10, 10),
    changes: dict[int, dict[str, Any]] | None = None,
) -> RawRow:
    """A row out of speeds; ``changes`` to single runs by their number in time."""
    speeds = [null[0], *(speed for block in blocks for speed in block), null[1]]
    arms = ["c", *("cssc" * len(blocks)), "c"]
    runs, now = [], 0.0
    for number, (arm, speed) in enumerate(zip(arms, speeds, strict=True)):
        make = classic if arm == "c" else speculative
        runs.append(make(speed, round(now, 6), **(changes or {}).get(number, {})))
        now += 40 / speed + 1
    pairs = tuple(tuple(runs[at : at + 4]) for at in range(1, len(runs) - 1, 4))
    return RawRow(pairs, (runs[0], runs[-1]))
