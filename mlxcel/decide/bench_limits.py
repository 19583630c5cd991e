"""Limits of the benchmark protocol; ``docs/decisions/0014-benchmark-protocol.md`` says why."""

from __future__ import annotations

__all__ = [
    "BOOTSTRAP_SAMPLES",
    "BOOTSTRAP_SEED",
    "CONFIDENCE",
    "DRIFT_ERRORS",
    "DRIFT_LIMIT_PERCENT",
    "MAX_WARMUPS",
    "MIN_BLOCKS",
    "NULL_LIMIT_PERCENT",
    "WARM_PERCENT",
]

MIN_BLOCKS = 3
"""Blocks of a row that is published: six samples of each arm (REPS of lablup/mlxcel#1215)."""

DRIFT_LIMIT_PERCENT = 1.0
"""Drift of the classic speed over a row: a video call lowered a whole table by 1.2 % with a
small spread (lablup/mlxcel#1215)."""

DRIFT_ERRORS = 3.0
"""Standard errors that a drift must have: less is noise, which the spread limit is for."""

NULL_LIMIT_PERCENT = 2.0
"""Distance of the null arm from the classic runs between speculative ones."""

WARM_PERCENT = 3.0
"""Two successive warm-up runs closer than this end the warm-up."""

MAX_WARMUPS = 8
"""Warm-up runs of an arm after which it is measured as it is."""

BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SEED = 20260819
CONFIDENCE = 0.95
