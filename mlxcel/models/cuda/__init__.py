"""Kernels of our own for MLX's CUDA backend: what a decode step of a few rows consists of.

Three, each compiled by MLX when first needed: a product of few rows with what comes before and
after it (`FewRowsProduct`), rotation (`Rotation`) and attention over a slot buffer (`Attending`).
The order of every sum follows from sizes of the model alone, so a token's numbers are the same
bits in a block of drafts as in a step of its own, up to `WIDEST` tokens.
"""

from mlxcel.models.cuda.attend import Attending, Rotation
from mlxcel.models.cuda.products import WIDEST, FewRowsProduct

__all__ = ["WIDEST", "Attending", "FewRowsProduct", "Rotation"]
