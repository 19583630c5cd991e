"""A kernel profile of given numbers, so that no test hangs on what the machine does meanwhile.

It is that of a Linux CPU as `mlxcel.hardware.kernels` measures it on a quiet one: the stored form
costs a row more for each row, the dense form costs almost nothing more, and no width is cheaper
when it is padded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxcel.hardware import kernels
from mlxcel.hardware.kernels import ROWS, KernelTimes, Projection

__all__ = ["FURTHER_ROW", "fixed_times", "keep_profile", "measure_kernels", "use_fixed_times"]

FURTHER_ROW = {"stored": 0.9, "dense": 0.04}
"""Cost of each further row, in units of the first, by form."""

SECONDS = 1e-9  # of a weight at one row

measure_kernels = kernels.measure_kernels
"""The real one."""


def fixed_times(projections: Sequence[Projection], dtype: Any, **options: Any) -> KernelTimes:
    """Takes the place of `mlxcel.hardware.kernels.measure_kernels`, and no time."""
    samples = {
        (each.name, form, rows): (
            SECONDS * each.inputs * each.outputs * (1 + FURTHER_ROW[form] * (rows - 1)),
        )
        for each in projections
        for form in each.forms
        for rows in ROWS
    }
    name = str(dtype).removeprefix("mlx.core.")
    return KernelTimes(projections=tuple(projections), dtype=name, samples=samples)


def use_fixed_times() -> None:
    """Give the kernel cache the fixed profile from now on; loads no MLX where none is loaded."""
    kernels.measure_kernels = fixed_times  # for when the cache is imported
    if (cache := sys.modules.get("mlxcel.runtime.kernel_profile")) is not None:
        cache.measure_kernels = fixed_times  # type: ignore[attr-defined]


def keep_profile(checkpoint: Path, cache_dir: Path) -> None:
    """Lay the fixed profile of a checkpoint where another process will look for it."""
    from mlxcel.runtime.kernel_profile import kernel_times, shapes_of

    shapes, dtype = shapes_of(checkpoint, cache_dir=cache_dir)
    kernel_times(shapes, dtype, cache_dir=cache_dir)
