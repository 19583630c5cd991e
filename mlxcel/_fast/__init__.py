"""Compiled core: slot table, round plan, settling and the n-gram index.

Nothing here imports other parts of the package, MLX or NumPy; tokens are uint32 throughout.
"""

from mlxcel._fast.ngram import NgramIndex
from mlxcel._fast.slots import (
    DRAINING,
    FINISH_LENGTH,
    FINISH_NONE,
    FINISH_STOP,
    FINISHED,
    FREE,
    RUNNING,
    SlotTable,
)

__all__ = [
    "DRAINING",
    "FINISHED",
    "FINISH_LENGTH",
    "FINISH_NONE",
    "FINISH_STOP",
    "FREE",
    "RUNNING",
    "NgramIndex",
    "SlotTable",
]
