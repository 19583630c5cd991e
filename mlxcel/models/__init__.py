"""What the engine needs of models: adapters over mlx-lm's, and drafters."""

from mlxcel.hardware.blas import choose as _choose

_choose()  # before any module here imports MLX
