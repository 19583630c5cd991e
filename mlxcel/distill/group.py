"""The processes that train together, one per device, as `mlx.launch` starts them."""

from __future__ import annotations

import os

import mlx.core as mx
import mlx.nn as nn

from mlxcel.distill.optimizer import Params

__all__ = ["Group"]


class Group:
    """Processes that each take a part of every step; by default this one alone.

    Parameters
    ----------
    found : mx.distributed.Group, optional
        What MLX knows of the processes.

    Attributes
    ----------
    rank, size : int
        Which of how many.
    """

    def __init__(self, found: mx.distributed.Group | None = None) -> None:
        self._group = found
        self.rank = 0 if found is None else found.rank()
        self.size = 1 if found is None else found.size()

    @classmethod
    def launched(cls) -> Group:
        """The processes started together with this one (`MLX_RANK` is set), else alone."""
        return cls(mx.distributed.init(strict=True)) if "MLX_RANK" in os.environ else cls()

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    def mean(self, gradients: Params) -> Params:
        """Mean over the processes of float32 arrays by name; the same bits on each."""
        if self._group is None:
            return gradients
        mean = nn.average_gradients(list(gradients.values()), self._group)
        return dict(zip(gradients, mean, strict=True))

    def first(self, value: float) -> mx.array:
        """The first process's value on each, float32; all must ask in the same order."""
        own = mx.array(value if self.rank == 0 else 0.0, mx.float32)
        return own if self._group is None else mx.distributed.all_sum(own, group=self._group)

    def wait(self) -> None:
        """Return once all processes are here."""
        mx.eval(self.first(0.0))
