"""Language models on MLX with speculative decoding one can trust.

``load`` gives an `LLM`, `EngineClient` the same from an engine in another process; everything
else is a record they take or return. Importing this
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
    from mlxcel.remote.client import EngineClient

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "EngineClient",
    "MlxcelError",
    "SamplingParams",
    "Settings",
    "SpecStats",
    "load",
]

_LAZY = {
    "EngineClient": "mlxcel.remote.client",
    "LLM": "mlxcel.llm",
    "Settings": "mlxcel.config",
    "load": "mlxcel.llm",
}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
