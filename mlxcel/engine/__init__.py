"""The round, its scheduler, and the thread that owns the model."""

from mlxcel.hardware.blas import choose as _choose

_choose()  # before any module here imports MLX
