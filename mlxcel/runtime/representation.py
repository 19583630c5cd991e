"""How weights are held in memory: as stored, or dense in a type this host is fast at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from mlxcel.errors import ConfigError, LoadError
from mlxcel.hardware.memory import available_bytes

__all__ = ["Representation", "represent"]

_HEADROOM = 1.25  # caches, activations and the other processes of the host


@dataclass(frozen=True, slots=True)
class Representation:
    """What was served and why.

    Attributes
    ----------
    form : {"stored", "dense"}
        As in the checkpoint, or every projection as one plain matrix.
    dtype : str
        Type of activations.
    reason : str
        Why.
    nbytes : int
        Bytes of all parameters.
    """

    form: str
    dtype: str
    reason: str
    nbytes: int

    @property
    def summary(self) -> str:
        """One phrase for logs and tables."""
        return f"{self.form} {self.dtype}, {self.nbytes / 2**20:.0f} MiB: {self.reason}"


def represent(
    model: nn.Module, weights: str, *, backend: str | None = None, free: int | None = None
) -> Representation:
    """Bring a model's weights into the form to be served; nothing is evaluated.

    On the CPU backend of MLX half precision is far slower than float32, and a quantized
    product costs as many times one row as it has rows, while a dense float32 product goes
    to the BLAS. So ``"auto"`` serves dense float32 there when memory allows.

    Parameters
    ----------
    model : nn.Module
        Loaded lazily by mlx-lm; changed in place.
    weights : {"auto", "stored", "dense"}
        ``"stored"`` keeps the checkpoint's representation (on the CPU with float32 scales
        and activations); ``"dense"`` dequantizes.
    backend : str, optional
        ``"cpu"``, ``"metal"`` or ``"cuda"``; detected by default.
    free : int, optional
        Available bytes; read from the host by default.

    Raises
    ------
    ConfigError
        ``weights`` is not one of the three.
    LoadError
        ``"dense"`` does not fit into memory.
    """
    if weights not in ("auto", "stored", "dense"):
        raise ConfigError(f"weights must be auto, stored or dense, got {weights!r}")
    on_cpu = (backend or detect_backend()) == "cpu"
    wide = mx.float32 if on_cpu else None
    needed = int(dense_bytes(model, wide or mx.bfloat16) * _HEADROOM)
    available = available_bytes() if free is None else free
    form, reason = _choose(weights, on_cpu, needed, available)
    dtype = wide or _own_dtype(model)  # before float32 products of dequantizing count
    if form == "dense":
        _to_dense(model)
    _cast(model, dtype)
    name = str(dtype).removeprefix("mlx.core.")
    return Representation(form, name, reason, _parameter_bytes(model))


def _choose(weights: str, on_cpu: bool, needed: int, available: int) -> tuple[str, str]:
    gib = f"{needed / 2**30:.1f} GiB needed, {available / 2**30:.1f} GiB available"
    if weights == "dense":
        if needed > available:
            raise LoadError(f"weights=dense does not fit: {gib}; use weights=stored")
        return "dense", "asked for"
    if weights == "stored":
        return "stored", "asked for"
    if not on_cpu:
        return "stored", "the default on a GPU"
    if needed > available:
        return "stored", f"dense float32 does not fit: {gib}"
    return "dense", "float32 is the fast form on the CPU backend"


def detect_backend() -> str:
    """Return ``"metal"``, ``"cuda"`` or ``"cpu"``: where MLX runs by default."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def dense_bytes(model: nn.Module, dtype: mx.Dtype) -> int:
    """Bytes of all parameters once dequantized."""
    total = 0
    for _, module in model.named_modules():
        for name, value in module.parameters().items():
            if not isinstance(value, mx.array) or name in ("scales", "biases"):
                continue
            size = int(value.size)
            if name == "weight" and hasattr(module, "bits"):
                size = size * 32 // int(module.bits)
            total += size * dtype.size
    return total


def _parameter_bytes(model: nn.Module) -> int:
    return sum(int(value.nbytes) for _, value in tree_flatten(model.parameters()))


def _own_dtype(model: nn.Module) -> mx.Dtype:
    """Type most parameters have; scales stand for the weights they belong to."""
    sizes: dict[mx.Dtype, int] = {}
    for _, value in tree_flatten(model.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            sizes[value.dtype] = sizes.get(value.dtype, 0) + int(value.size)
    return max(sizes, key=lambda dtype: sizes[dtype])


def _to_dense(model: nn.Module) -> None:
    replaced: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.QuantizedLinear):
            dense: nn.Module = nn.Linear(1, 1, bias="bias" in module)
        elif isinstance(module, nn.QuantizedEmbedding):
            dense = nn.Embedding(1, 1)
        else:
            continue
        dense.weight = mx.dequantize(
            module.weight,
            module.scales.astype(mx.float32),
            None if module.get("biases") is None else module.biases.astype(mx.float32),
            group_size=module.group_size,
            bits=module.bits,
            mode=module.mode,
        )
        if "bias" in module:
            dense.bias = module.bias
        replaced.append((path, dense))
    from mlx.utils import tree_unflatten

    if replaced:
        model.update_modules(tree_unflatten(replaced))
    for path, module in model.named_modules():
        if hasattr(module, "bits") and hasattr(module, "group_size"):
            kind = type(module).__name__
            raise LoadError(f"weights=dense: {path} is a {kind}, which cannot be made dense here")


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    def cast(value: Any) -> Any:
        if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating):
            return value.astype(dtype)
        return value

    model.update(tree_map(cast, model.parameters()))
