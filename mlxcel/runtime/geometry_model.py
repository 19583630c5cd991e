"""Targets of a published size with made-up weights, for measuring what they cost.

The model classes are mlx-lm's own and their first weights are lazy, so nothing is allocated
before the bytes are counted, and the weights are made, cast, quantized and evaluated one
matrix at a time. No kernel's time depends on the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import gemma4_text, qwen3_5

from mlxcel.errors import LoadError
from mlxcel.models.lean import lean_for
from mlxcel.models.target import Target
from mlxcel.runtime.geometry import Geometry, Quantization
from mlxcel.runtime.representation import detect_backend

__all__ = [
    "FORMS",
    "build_target",
    "cast",
    "evaluate",
    "needed_bytes",
    "quantized",
    "require_memory",
]

FORMS = ("stored", "dense")

_TEMPORARY = 10  # bytes per element while one matrix is made: float32, its cast, the quantized
_ROOM = 1.05  # caches, activations, and what an allocator rounds up
_LARGE = 64 << 20  # bytes

Progress = Callable[[str, int, int], None]


def build_target(
    geometry: Geometry, form: str, dtype: mx.Dtype, progress: Progress | None = None
) -> Target:
    """Build a target with random weights on this thread, which must also run it.

    Parameters
    ----------
    geometry : Geometry
        Its sizes.
    form : {"stored", "dense"}
        Quantized as published, or plain matrices.
    dtype : mx.Dtype
        Type of activations, scales and dense weights.
    progress : callable, optional
        Called with a label, the bytes done and their total.

    Raises
    ------
    LoadError
        The model cannot be split into body and head, which its passes need.
    """
    model = _lazy_model(geometry, form, dtype)
    evaluate(model, f"{geometry.name} {form}", progress)
    lean_for(model, detect_backend())  # as a loaded checkpoint has it
    target = Target(model, geometry.model_args())
    if not target.split:
        raise LoadError(
            f"{geometry.name}: head(body(x)) is not model(x) for {type(model).__module__}; "
            "its passes cannot be measured as the engine runs them"
        )
    return target


def needed_bytes(geometry: Geometry, form: str, dtype: mx.Dtype) -> int:
    """Bytes that `build_target` takes at most; allocates nothing."""
    model = _lazy_model(geometry, form, dtype)
    parameters = [value for _, value in tree_flatten(model.parameters())]
    largest = max(
        int(value.size) * (8 if value.dtype == mx.uint32 else 1) for value in parameters
    )  # a packed word has at least as many weights as 4-bit ones
    return int(_ROOM * sum(int(value.nbytes) for value in parameters)) + _TEMPORARY * largest


def require_memory(what: str, needed: int, available: int) -> None:
    """Refuse what does not fit, before anything is allocated.

    Raises
    ------
    LoadError
        Names the bytes needed and available, and what to do.
    """
    if needed > available:
        raise LoadError(
            f"{what}: {needed / 2**30:.1f} GiB needed, {available / 2**30:.1f} GiB available; "
            "build fewer layers (--layers) or the other form alone (--weights)"
        )


def quantized(
    module: nn.Module,
    quantization: Quantization,
    predicate: Callable[[str, nn.Module], Any] | None = None,
) -> None:
    """Quantize a module's matrices in place, lazily, by the rule of mlx-lm's conversions.

    A matrix whose rows are no whole number of groups stays as it is; ``predicate`` is that of
    the model, which may name another quantization.
    """

    def rule(path: str, part: nn.Module) -> Any:
        if not hasattr(part, "to_quantized") or part.weight.shape[-1] % quantization.group_size:
            return False
        if isinstance(part, nn.Embedding) and not quantization.embeddings:
            return False
        return True if predicate is None else predicate(path, part)

    nn.quantize(
        module,
        group_size=quantization.group_size,
        bits=quantization.bits,
        class_predicate=rule,
    )


def evaluate(module: nn.Module, label: str, progress: Progress | None = None) -> None:
    """Make all weights, one matrix at a time, giving back what each took meanwhile."""
    parameters = [value for _, value in tree_flatten(module.parameters())]
    total, done = sum(int(value.nbytes) for value in parameters), 0
    for value in parameters:
        mx.eval(value)
        if value.nbytes > _LARGE:
            mx.clear_cache()
        done += int(value.nbytes)
        if progress is not None:
            progress(label, done, total)
    mx.clear_cache()


def cast(module: nn.Module, dtype: mx.Dtype) -> None:
    """Change the type of all weights lazily; decay rates stay in float32, as mlx-lm keeps them."""

    def one(path: str, value: Any) -> Any:
        if path.endswith("A_log") or not mx.issubdtype(value.dtype, mx.floating):
            return value
        return value.astype(dtype)

    module.update(tree_map_with_path(one, module.parameters()))


def _lazy_model(geometry: Geometry, form: str, dtype: mx.Dtype) -> nn.Module:
    """The model in a form, nothing of it evaluated."""
    args = geometry.model_args()
    if args["model_type"] == "gemma4_text":
        model = gemma4_text.Model(gemma4_text.ModelArgs.from_dict(args))
    else:
        model = qwen3_5.Model(
            qwen3_5.ModelArgs(model_type=args["model_type"], text_config=args)
        )
    cast(model, dtype)
    if form == "stored":
        quantized(model, geometry.quantization, model.quant_predicate)
    model.eval()
    return model
