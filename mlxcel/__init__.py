"""Language models on MLX with speculative decoding one can trust.

``load`` gives an `LLM`; everything else is a record it takes or returns. Importing this
package imports no MLX: the choice of BLAS must come first (see ``mlxcel.hardware.blas``).
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from mlxcel.errors import MlxcelError
from mlxcel.types import Chunk, Completion, SamplingParams, SpecStats

if TYPE_CHECKING:
    from mlxcel.config import Settings
    from mlxcel.llm import LLM, load

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "MlxcelError",
    "SamplingParams",
    "Settings",
    "SpecStats",
    "load",
]

_LAZY = {"LLM": "mlxcel.llm", "load": "mlxcel.llm", "Settings": "mlxcel.config"}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
