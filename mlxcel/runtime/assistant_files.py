"""From a folder to a Gemma 4 assistant; everything is checked before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from mlxcel.errors import LoadError
from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant, build_assistant
from mlxcel.models.target import Target
from mlxcel.runtime.checkpoint import read_object
from mlxcel.runtime.weight_files import match_shapes, read_weight_files

__all__ = ["load_assistant", "match_tensors"]

_TIED = "lm_head."  # the same tensor as the embedding, where a state dict was saved as it is
_ORDER = "masked_embedding.token_ordering"

Shapes = Mapping[str, tuple[int, ...]]


def load_assistant(folder: Path, target: Target) -> Gemma4Assistant:
    """Load an assistant for a target.

    A quantized checkpoint stays as it is.

    Parameters
    ----------
    folder : Path
        ``config.json`` and ``model*.safetensors``.
    target : Target
        The model it shall draft for.

    Returns
    -------
    Gemma4Assistant
        In the target's type of activations.

    Raises
    ------
    LoadError
        Names the file and what is missing, damaged or made for another target.
    """
    path = folder / "config.json"
    config = read_object(path)
    assistant = build_assistant(config, target, str(path))
    files = read_weight_files(folder)
    shapes = {name: shape for file in files for name, shape in file.shapes.items()}
    names = match_tensors(assistant, config, shapes, str(folder))
    arrays: dict[str, mx.array] = {}
    for file in files:
        arrays |= mx.load(str(file.path))  # type: ignore[arg-type]
    dtype = target.body.norm.weight.dtype
    assistant.update(tree_unflatten([(name, _served(arrays[name], dtype)) for name in names]))
    assistant.eval()
    mx.eval(assistant.parameters())
    _check_order(assistant, target.vocab_size, folder)
    return assistant


def match_tensors(
    assistant: nn.Module, config: Mapping[str, Any], shapes: Shapes, where: str
) -> list[str]:
    """Names of an assistant's tensors, all of which a checkpoint has, with the right shapes.

    Parameters
    ----------
    assistant : nn.Module
        Without weights; gets the quantized modules that the checkpoint has.
    config : mapping
        Its ``config.json``.
    shapes : mapping of str to tuple of int
        What the checkpoint holds.
    where : str
        Its folder, for messages.

    Raises
    ------
    LoadError
        A tensor is missing, has another shape, or belongs to something that is not known here.
    """
    held = {name: shape for name, shape in shapes.items() if not name.startswith(_TIED)}
    _quantize_as_stored(assistant, config, held, where)
    flat: Any = tree_flatten(assistant.parameters())
    wanted = {name: tuple(value.shape) for name, value in flat}
    hint = ""
    if all(name.startswith("masked_embedding.") for name in wanted.keys() - held.keys()):
        hint = "; config.json has use_ordered_embeddings true, which needs them"
    match_shapes(
        wanted,
        held,
        where,
        lacks=lambda names: f"missing tensors: {names}{hint}; fetch it again",
        strange=lambda names: (
            f"has tensors that are no part of such an assistant: {names}; its config.json does not "
            "describe them"
        ),
    )
    return list(wanted)


def _quantize_as_stored(
    assistant: nn.Module, config: Mapping[str, Any], shapes: Shapes, where: str
) -> None:
    """Make the modules quantized that the checkpoint has quantized; nothing is computed."""
    stored = {name.removesuffix(".scales") for name in shapes if name.endswith(".scales")}
    if not stored:
        return
    table = config.get("quantization") or config.get("quantization_config")
    if not isinstance(table, Mapping) or "bits" not in table:
        raise LoadError(
            f"{where}: has quantized tensors ({min(stored)}), but config.json has no "
            "quantization with bits and group_size"
        )

    def form(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if path not in stored or not hasattr(module, "to_quantized"):
            return False
        own = table.get(path)
        fields = table if not isinstance(own, Mapping) else {**table, **own}
        names = {"bits": table["bits"], "group_size": 64, "mode": "affine"}
        return {name: fields.get(name, default) for name, default in names.items()}

    nn.quantize(assistant, class_predicate=form)


def _served(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """Floats in the type of activations; ids as MLX indexes; packed weights as they are."""
    if mx.issubdtype(array.dtype, mx.floating):
        return array.astype(dtype)
    return array.astype(mx.uint32) if array.dtype in (mx.int64, mx.int32) else array


def _check_order(assistant: Gemma4Assistant, vocab_size: int, folder: Path) -> None:
    """An ordered head whose ids repeat or lie outside of the vocabulary is damaged."""
    if "masked_embedding" not in assistant:
        return
    ids = mx.sort(assistant.masked_embedding.token_ordering)
    if not mx.array_equal(ids, mx.arange(vocab_size, dtype=mx.uint32)).item():
        raise LoadError(f"{folder}: {_ORDER} does not name each of {vocab_size} ids once")
