"""What a benchmark writes down about the pairing that an engine serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlxcel.engine.exactness import exactness_of
from mlxcel.engine.served_form import kernel_verdict, served_verdict

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine

__all__ = ["bench_facts"]


def bench_facts(engine: Engine, widths: Sequence[int]) -> dict[str, Any]:
    """Facts of a pairing; call it on the engine's thread, between requests.

    Kernel profile and exactness come from the cache folder, or are measured now, so that no
    timed run pays for it.

    Parameters
    ----------
    engine : Engine
        With target and drafter.
    widths : sequence of int
        Block widths that will run.

    Returns
    -------
    dict
        ``target``, ``target_quantization`` (``4-bit`` or ``None``), ``drafter_kind``,
        ``batch_capable``, ``form`` (of the weights, with its type), ``kernel`` (``wide`` and the
        like), and ``exactness``: a pair of level and reason for each width.

    Raises
    ------
    LoadError
        The target has no projection that can be timed.
    """
    model, settings = engine.model, engine.settings
    table = model.target.config.get("quantization")
    bits = table.get("bits") if isinstance(table, dict) else None
    rule = engine.scheduler.rule()
    exactness = [("unprobed", "MLXCEL_MTP_EXACTNESS=off")]
    if settings.mtp_exactness != "off":
        found = [exactness_of(model, width, settings, rule=rule) for width in widths]
        exactness = [(record.level, f"width {record.width}: {record.reason}") for record in found]
    form = model.representation
    return {
        "target": model.checkpoint.name,
        "target_quantization": f"{bits}-bit" if bits else None,
        "drafter_kind": "none" if engine.drafter is None else engine.drafter.kind,
        "batch_capable": model.target.layout.windows is not None,
        "form": f"{form.form} {form.dtype}",
        "kernel": served_verdict(model, kernel_verdict(model, settings)).kernel,
        "exactness": exactness,
    }
