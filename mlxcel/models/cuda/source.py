"""Makes MLX kernels of the headers in this folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx

__all__ = ["TYPES", "kernel", "room_for"]

TYPES = {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
"""CUDA's names of the types that the kernels take."""

_HERE = Path(__file__).resolve().parent


def room_for(rows: int) -> int:
    """Rows a kernel is compiled for where ``rows`` are wanted: the next power of two."""
    return 1 << (rows - 1).bit_length()


@lru_cache
def kernel(header: str, call: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A callable of ``mx.fast.cuda_kernel`` for one call of a function of ours.

    The source is that call alone and the function lies in a file: MLX puts the source together
    and hashes it each time the kernel is called.

    Parameters
    ----------
    header : str
        File of this folder, without its ending.
    call : str
        Body of the kernel.
    inputs, outputs : sequence of str
        Arrays that the call names, in order.
    """
    return mx.fast.cuda_kernel(
        name=f"mlxcel_{header}",
        input_names=list(inputs),
        output_names=list(outputs),
        source=call,
        header=f'#include "{_HERE / header}.cuh"\n',
    )
