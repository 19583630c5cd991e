"""The kernel profile of a model: which projections to time, and the cache of the times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel.errors import LoadError
from mlxcel.hardware.host import Host, describe
from mlxcel.hardware.kernels import ROWS, KernelTimes, Projection, measure_kernels
from mlxcel.hardware.memory import device_bytes
from mlxcel.hardware.profile_store import ProfileStore, host_facts
from mlxcel.runtime.cache_folder import Progress
from mlxcel.runtime.loader import open_lazily
from mlxcel.runtime.representation import detect_backend, served_dtype

__all__ = ["PROFILE_VERSION", "kernel_times", "projections_of", "shapes_of", "store_of"]

log = logging.getLogger(__name__)

PROFILE_VERSION = 3
"""Of the record and of how it is measured; another version is measured again."""

_NO_TIME = 1e-9  # seconds; below it a stored sample is damage, not a time

_HEADS = ("lm_head", "embed_tokens")


@dataclass(frozen=True, slots=True)
class _Quantization:
    bits: int = 0
    group_size: int = 0
    mode: str = ""


def projections_of(model: nn.Module, config: dict[str, Any]) -> tuple[Projection, ...]:
    """The largest MLP projection and the output head of a model, as its checkpoint has them.

    Works on a model whose weights are not read yet, and on one that has been made dense:
    the quantization then comes from the config.

    Parameters
    ----------
    model : nn.Module
        Model object of mlx-lm.
    config : dict
        Its ``config.json``.

    Raises
    ------
    LoadError
        The model has no projection of a kind that can be timed.
    """
    matrices = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.QuantizedLinear | nn.Embedding | nn.QuantizedEmbedding)
    }
    head = next((p for end in _HEADS for p in matrices if p.rpartition(".")[2] == end), None)
    inner = {p: m for p, m in matrices.items() if isinstance(m, nn.Linear | nn.QuantizedLinear)}
    inner.pop(head or "", None)
    if not inner:
        raise LoadError(f"{type(model).__module__}: no projection that could be timed was found")
    pool = {path: m for path, m in inner.items() if "mlp" in path.split(".")} or inner
    sizes = {path: _size(m) for path, m in inner.items()}
    weights = sum(_outputs(m) * sizes[path][1] for path, m in inner.items())
    # The most frequent of equals would do as well; the first in the model is the same one.
    largest = max(pool, key=lambda path: sizes[path][0] * sizes[path][1])
    mine = sizes[largest][0] * sizes[largest][1]
    count = weights / mine
    found = [_projection("mlp" if "mlp" in largest else "layer", largest, inner, config, count)]
    if head is not None:
        found.append(_projection("head", head, matrices, config, 1.0))
    return tuple(found)


def _projection(
    name: str, path: str, modules: dict[str, nn.Module], config: dict[str, Any], count: float
) -> Projection:
    outputs, inputs = _size(modules[path])
    form = _quantization(modules[path], config, path)
    return Projection(
        name=name,
        inputs=inputs,
        outputs=outputs,
        bits=form.bits,
        group_size=form.group_size,
        mode=form.mode,
        count=round(count, 3),
    )


def _quantization(module: nn.Module, config: dict[str, Any], path: str) -> _Quantization:
    if hasattr(module, "bits"):
        return _Quantization(
            int(module.bits), int(module.group_size), str(getattr(module, "mode", "affine"))
        )
    table = config.get("quantization") or {}
    entry = table.get(path, table)
    if not isinstance(entry, dict) or not entry.get("bits"):
        return _Quantization()
    return _Quantization(
        int(entry["bits"]), int(entry.get("group_size", 64)), str(entry.get("mode", "affine"))
    )


def _size(module: nn.Module) -> tuple[int, int]:
    """Outputs and inputs; of the largest part where several have been joined."""
    columns = module.weight.shape[1]
    if hasattr(module, "bits"):
        columns = columns * 32 // int(module.bits)
    return max(module.get("parts", (_outputs(module),))), int(columns)


def _outputs(module: nn.Module) -> int:
    return int(module.weight.shape[0])


def shapes_of(
    name: str | Path, *, cache_dir: Path, progress: Progress | None = None
) -> tuple[tuple[Projection, ...], mx.Dtype]:
    """Projections of a checkpoint and the type it would be served in; reads no weights.

    Parameters
    ----------
    name : str or Path
        Folder, hub id, GGUF file or ``"demo"``.
    cache_dir : Path
        Where converted checkpoints are kept.
    progress : callable, optional
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    """
    _, model, config = open_lazily(name, cache_dir=cache_dir, progress=progress)
    return projections_of(model, config), served_dtype(model)


def kernel_times(
    projections: Sequence[Projection],
    dtype: mx.Dtype,
    *,
    cache_dir: Path,
    host: Host | None = None,
    refresh: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    now: Callable[[], float] = time.time,
) -> tuple[KernelTimes, bool]:
    """The kernel profile of this host for these shapes: from the cache, else measured.

    Parameters
    ----------
    projections, dtype
        As for `mlxcel.hardware.kernels.measure_kernels`.
    cache_dir : Path
        The user's cache folder; profiles lie under ``kernels/``.
    host : Host, optional
        This host; described by default.
    refresh : bool
        Measure again, whatever is in the cache.
    clock : callable
        Seconds.
    now : callable
        Seconds since 1970, for the day on which the profile was taken.

    Returns
    -------
    KernelTimes
        The times.
    bool
        Whether they come from the cache.
    """
    store = store_of(cache_dir)
    key = _key(projections, dtype, host or describe())
    record = None if refresh else store.read(key)
    if record is not None:
        try:
            return _from_record(record, tuple(projections), key["dtype"]), True
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("%s is damaged (%r): measuring again", store.path(key), error)
    free = device_bytes(detect_backend())
    times = measure_kernels(projections, dtype, clock=clock, free=free)
    mx.clear_cache()  # the made-up weights: the real ones may be about to be read
    day = datetime.fromtimestamp(now(), UTC).date()
    times = replace(times, taken_on=day.isoformat())
    store.write(key, _to_record(times))
    log.info("kernel profile measured in %.1f s", times.seconds)
    return times, False


def store_of(cache_dir: Path) -> ProfileStore:
    """Where kernel profiles are kept."""
    return ProfileStore(cache_dir / "kernels", PROFILE_VERSION)


def _key(projections: Sequence[Projection], dtype: mx.Dtype, host: Host) -> dict[str, Any]:
    return {
        "host": host_facts(host),
        "dtype": str(dtype).removeprefix("mlx.core."),
        "rows": list(ROWS),
        "projections": [asdict(projection) for projection in projections],
    }


def _to_record(times: KernelTimes) -> dict[str, Any]:
    cells = [
        {"projection": name, "form": form, "rows": rows, "samples": list(samples)}
        for (name, form, rows), samples in times.samples.items()
    ]
    skipped = [
        {"projection": name, "form": form, "reason": reason}
        for (name, form), reason in times.skipped.items()
    ]
    return {
        "cells": cells,
        "skipped": skipped,
        "seconds": times.seconds,
        "taken_on": times.taken_on,
    }


def _from_record(
    record: dict[str, Any], projections: tuple[Projection, ...], dtype: str
) -> KernelTimes:
    skipped = {(s["projection"], s["form"]): str(s["reason"]) for s in record["skipped"]}
    samples = {
        (cell["projection"], cell["form"], cell["rows"]): tuple(map(float, cell["samples"]))
        for cell in record["cells"]
    }
    wanted = {
        (projection.name, form, rows)
        for projection in projections
        for form in projection.forms
        for rows in ROWS
        if (projection.name, form) not in skipped
    }
    if samples.keys() != wanted:
        raise ValueError("it has other cells than these projections")
    if not all(cell and all(_NO_TIME < t < 1e4 for t in cell) for cell in samples.values()):
        raise ValueError("a time is missing or out of bounds")
    return KernelTimes(
        projections=projections,
        dtype=dtype,
        samples=samples,
        skipped=skipped,
        seconds=float(record["seconds"]),
        taken_on=date.fromisoformat(record["taken_on"]).isoformat(),
    )
