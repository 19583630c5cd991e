"""Kernel profiles that a test makes up, in place of measured ones."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxcel.hardware.kernels import ROWS, KernelTimes
from mlxcel.runtime import kernel_profile


class Kernels:
    """Times by form, as seconds of the first row and of each further one; counts its use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **costs: tuple[float, float]) -> None:
        self.costs, self.runs = costs, 0
        monkeypatch.setattr(kernel_profile, "measure_kernels", self)

    def __call__(self, projections: Any, dtype: mx.Dtype, **options: Any) -> KernelTimes:
        self.runs += 1
        samples = {
            (p.name, form, rows): (first + further * (rows - 1),)
            for p in projections
            for form, (first, further) in self.costs.items()
            for rows in ROWS
        }
        forms = {form for p in projections for form in p.forms} - self.costs.keys()
        skipped = {(p.name, form): "no room" for p in projections for form in forms}
        return KernelTimes(
            projections=tuple(projections), dtype="float32", samples=samples, skipped=skipped
        )
