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
        ``reading`` (their prompt) and ``waiting``, widths of rounds of several rows and their
        cost (``None`` before they were needed), what is kept of prefixes, why a drafter that was
        given does not run (``no_drafter``), and ``bytes`` by what they are for.
    """
    scheduler = engine.scheduler
    crowd = None if scheduler.governor is None else scheduler.governor.crowd
    return engine.metrics.snapshot() | {
        "running": len(scheduler.running),
        "reading": int(scheduler.prefilling is not None),
        "waiting": len(scheduler.waiting),
        "max_rows": scheduler.max_rows,
        "drafter": "none" if engine.drafter is None else engine.drafter.kind,
        "no_drafter": engine.no_drafter or None,
        "failed": engine.failed,
        "load_widths": None if crowd is None else _by_text(crowd.snapshot()),
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


def _by_text(value: Any) -> Any:
    """The same with texts as keys, as JSON has them."""
    if isinstance(value, dict):
        return {str(key): _by_text(each) for key, each in value.items()}
    return [_by_text(each) for each in value] if isinstance(value, list) else value
