"""Peak memory bandwidth and arithmetic of chips, as their makers publish them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Peak", "peak_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a chip can do at most.

    Attributes
    ----------
    bytes_per_second : float
        Memory bandwidth.
    flops_per_second : float
        Dense bfloat16 products, without sparsity, a multiply-add counting as two.
    source : str
        Where the figures are from.
    """

    bytes_per_second: float
    flops_per_second: float
    source: str


_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"\bH200\b", Peak(bytes_per_second=4.8e12, flops_per_second=989.5e12,
                       source="NVIDIA H200 datasheet: 4.8 TB/s, 1979 TFLOPS with sparsity")),
    (r"\bH100\b.*\bHBM3\b|\bH100 SXM", Peak(
        bytes_per_second=3.35e12, flops_per_second=989.5e12,
        source="NVIDIA H100 datasheet, SXM: 3.35 TB/s, 1979 TFLOPS with sparsity")),
)  # fmt: skip


def peak_of(chip: str) -> Peak | None:
    """The peak of a chip by its name; ``None`` for one that is not in the table.

    Parameters
    ----------
    chip : str
        As `mlxcel.hardware.host.describe` gives it, such as ``"NVIDIA H200"``.

    Notes
    -----
    The H200 has 4.8 TB/s and 1979 TFLOP/s of bfloat16 with two-to-four sparsity (NVIDIA H200
    Tensor Core GPU datasheet), so half of that, about 990 TFLOP/s, for dense products.
    """
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, chip)), None)
