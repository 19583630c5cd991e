"""An engine seen from outside: what has been counted, and what there is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine

__all__ = ["snapshot_of"]


def snapshot_of(engine: Engine) -> dict[str, Any]:
    """Counters, histograms and the present state.

    Returns
    -------
    dict
        JSON values; times in seconds. See `Metrics.snapshot`; besides: requests ``running``,
        ``reading`` (their prompt) and ``waiting``, what is kept of prefixes, and ``bytes`` by
        what they are for.
    """
    scheduler = engine.scheduler
    return engine.metrics.snapshot() | {
        "running": len(scheduler.running),
        "reading": int(scheduler.prefilling is not None),
        "waiting": len(scheduler.waiting),
        "max_rows": scheduler.max_rows,
        "drafter": "none" if engine.drafter is None else engine.drafter.kind,
        "failed": engine.failed,
        "prefixes": engine.prefixes.store.snapshot(),
        "bytes": {
            "weights": engine.model.target.nbytes,
            "caches": engine.rows.nbytes,
            "caches_ceiling": engine.settings.cache_bytes,
            "prefixes": engine.prefix_bytes,
            "mlx_active": mx.get_active_memory(),
            "mlx_cache": mx.get_cache_memory(),
        },
    }
