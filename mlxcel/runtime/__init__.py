"""Loading, tokenizer, caches, prefill, verify and sampling: everything that runs on the device."""

from mlxcel.hardware.blas import choose as _choose

_choose()  # before any module here imports MLX
