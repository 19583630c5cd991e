"""How weights are held in memory: as stored, or dense in a type this host is fast at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path, tree_unflatten

from mlxcel.errors import ConfigError, LoadError, MlxcelError
from mlxcel.hardware.memory import device_bytes

__all__ = [
    "Preference",
    "Quantized",
    "Representation",
    "detect_backend",
    "quantize_projections",
    "represent",
    "served_dtype",
]

log = logging.getLogger(__name__)

_HEADROOM = 1.25  # caches, activations and the other processes of the host


class Preference(NamedTuple):
    """Which form of the weights runs faster here, and by which figures."""

    form: str
    reason: str


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
    model: nn.Module,
    weights: str,
    *,
    prefer: Callable[[], Preference] | None = None,
    backend: str | None = None,
    free: int | None = None,
) -> Representation:
    """Bring a model's weights into the form to be served; no weight is evaluated.

    Of a quantized checkpoint ``"auto"`` serves what ``prefer`` says, where a dense form is
    possible and fits into memory. Without an answer it serves dense float32 on the CPU
    backend, where half precision is far slower and a quantized product costs as many times
    one row as it has rows, and the stored form on a GPU.

    Parameters
    ----------
    model : nn.Module
        Loaded lazily by mlx-lm; changed in place.
    weights : {"auto", "stored", "dense"}
        ``"stored"`` keeps the checkpoint's representation (on the CPU with float32 scales
        and activations); ``"dense"`` dequantizes.
    prefer : callable, optional
        Measures which form is faster; called at most once, before anything is changed, and
        only where there is a choice.
    backend : str, optional
        ``"cpu"``, ``"metal"`` or ``"cuda"``; detected by default.
    free : int, optional
        Available bytes; read from the device by default.

    Raises
    ------
    ConfigError
        ``weights`` is not one of the three.
    LoadError
        ``"dense"`` does not fit into memory.
    """
    if weights not in ("auto", "stored", "dense"):
        raise ConfigError(f"weights must be auto, stored or dense, got {weights!r}")
    backend = backend or detect_backend()
    dtype = served_dtype(model, backend)
    form, reason = _choose(model, weights, backend, free, dtype, prefer)
    if form == "dense":
        _to_dense(model)
    _cast(model, dtype)
    return Representation(form, _name(dtype), reason, _parameter_bytes(model))


def _choose(
    model: nn.Module,
    weights: str,
    backend: str,
    free: int | None,
    dtype: mx.Dtype,
    prefer: Callable[[], Preference] | None,
) -> Preference:
    """The form to serve and why; memory has the last word."""
    if weights == "stored":
        return Preference("stored", "asked for")
    needed = int(dense_bytes(model, dtype) * _HEADROOM)
    available = device_bytes(backend) if free is None else free
    gib = f"{needed / 2**30:.1f} GiB needed, {available / 2**30:.1f} GiB available"
    if weights == "dense":
        if needed > available:
            raise LoadError(f"weights=dense does not fit: {gib}; use weights=stored")
        return Preference("dense", "asked for")
    if not _quantized(model):
        form = "dense" if backend == "cpu" else "stored"
        return Preference(form, "the checkpoint is not quantized and has one form only")
    if rigid := _rigid(model):
        return Preference("stored", f"{rigid}, which has no dense form here")
    if needed > available:
        return Preference("stored", f"dense {_name(dtype)} does not fit: {gib}")
    return _preferred(backend, prefer)


def _preferred(backend: str, prefer: Callable[[], Preference] | None) -> Preference:
    """What a measurement prefers; the rule of the backend where there is none."""
    why = "no kernel profile was asked for"
    if prefer is not None:
        try:
            return prefer()
        except (MlxcelError, RuntimeError, ValueError, MemoryError) as error:
            log.warning("no kernel profile can be taken: %s", error)
            why = f"no kernel profile can be taken ({error})"
    if backend == "cpu":
        return Preference("dense", f"by rule, float32 is the fast form on the CPU backend; {why}")
    return Preference("stored", f"by rule, the default on a GPU; {why}")


class Quantized(NamedTuple):
    """Projections that have been quantized, and their bytes before and after."""

    projections: int
    before: int
    after: int


def quantize_projections(
    model: nn.Module, bits: int, *, group_size: int = 64, keep: Collection[str] = ()
) -> Quantized:
    """Quantize the linear projections of a model in place; affine, and lazy.

    Embeddings, norms and biases stay, and so does everything where any module is quantized
    already. A matrix whose rows are no multiple of ``group_size`` is tried with groups of 32,
    else it stays.

    Parameters
    ----------
    model : nn.Module
        Dense.
    bits, group_size : int
        As for ``mx.quantize``.
    keep : collection of str
        Last parts of the names of projections that stay.
    """
    found: list[nn.Module] = []

    def form(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if type(module) is not nn.Linear or path.rpartition(".")[2] in keep:
            return False
        columns = int(module.weight.shape[-1])
        group = next((size for size in (group_size, 32) if columns % size == 0), 0)
        if group:
            found.append(module)
        return {"group_size": group, "bits": bits, "mode": "affine"} if group else False

    before = _parameter_bytes(model)
    if not _quantized(model):
        nn.quantize(model, class_predicate=form)
    kept = before - sum(_parameter_bytes(module) for module in found)
    return Quantized(len(found), before - kept, _parameter_bytes(model) - kept)


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _quantized(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Quantized modules with their paths."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if hasattr(module, "bits") and hasattr(module, "group_size")
    ]


def _rigid(model: nn.Module) -> str:
    """The first quantized module that `_to_dense` cannot change; empty if there is none."""
    for path, module in _quantized(model):
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return f"{path} is a {type(module).__name__}"
    return ""


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


def served_dtype(model: nn.Module, backend: str | None = None) -> mx.Dtype:
    """Type of activations: float32 on the CPU, else what most parameters have.

    Scales stand for the weights they belong to, so ask before anything is dequantized.
    """
    if (backend or detect_backend()) == "cpu":
        return mx.float32
    sizes: dict[mx.Dtype, int] = {}
    for _, value in tree_flatten(model.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            sizes[value.dtype] = sizes.get(value.dtype, 0) + int(value.size)
    return max(sizes, key=lambda dtype: sizes[dtype], default=mx.bfloat16)


def _to_dense(model: nn.Module) -> None:
    if rigid := _rigid(model):
        raise LoadError(f"weights=dense: {rigid}, which cannot be made dense here")
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
    if replaced:
        model.update_modules(tree_unflatten(replaced))


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    core = getattr(model, "language_model", model)
    may_cast = getattr(core, "cast_predicate", lambda path: True)  # decays of recurrent layers

    def cast(path: str, value: Any) -> Any:
        floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return value.astype(dtype) if floating and may_cast(path) else value

    model.update(tree_map_with_path(cast, model.parameters()))
