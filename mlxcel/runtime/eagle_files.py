"""From a folder to an EAGLE head; everything is checked before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mlxcel.errors import LoadError
from mlxcel.models.drafters.eagle import EagleHead
from mlxcel.models.drafters.eagle3 import Eagle3Head
from mlxcel.models.drafters.eagle_config import (
    EagleConfig,
    EagleKind,
    check_pair,
    named_kind,
    read_eagle,
)
from mlxcel.models.drafters.mtp import flat_weights
from mlxcel.models.drafters.published_mtp import Part, quantization_mode, quantized_as
from mlxcel.models.target import Target
from mlxcel.runtime.checkpoint import read_object
from mlxcel.runtime.weight_files import WeightFile, match_shapes, read_weight_file

__all__ = ["eagle_by_tensors", "head_for", "load_eagle"]

_PICKLE = "pytorch_model.bin"
_CONVERT = (
    "from safetensors.torch import save_file; import torch; "
    f"w = torch.load('{_PICKLE}', map_location='cpu', weights_only=True); "
    "save_file({k: v.contiguous() for k, v in w.items()}, 'model.safetensors')"
)
_OFFSETS, _USED = "d2t", "t2d"
_EMBEDDING = "embed_tokens.weight"
_RENAMED = (  # speculators' and vLLM's names, by their beginnings
    ("fusion_fc.", "fc."),
    ("transformer.", "layers.0."),
    ("draft_id_to_target_id", _OFFSETS),
)
_UNUSED = ("rotary_emb.", "layers.0.self_attn.rotary_emb.", "midlayer.self_attn.rotary_emb.")

Head = EagleHead | Eagle3Head
Shapes = Mapping[str, tuple[int, ...]]


def eagle_by_tensors(folder: Path) -> EagleKind | None:
    """Which kind of EAGLE head a folder holds whose config is that of a llama of one layer.

    Parameters
    ----------
    folder : Path
        Any folder. Only headers are read.

    Returns
    -------
    {"eagle", "eagle3"} or None
        ``None`` for any other folder, and for a damaged one: whoever loads it as a model says what
        is wrong.
    """
    try:
        config = read_object(folder / "config.json")
        if config.get("model_type") != "llama" or config.get("num_hidden_layers") != 1:
            return None
        files = sorted(folder.glob("*.safetensors"))
        shapes = [name for file in files for name in read_weight_file(file).shapes]
    except LoadError:
        return None
    names = {_renamed(name, "eagle") for name in shapes}
    if _OFFSETS in names or any(name.startswith("midlayer.") for name in names):
        return "eagle3"
    # A pickle alone is no model here either, but of a head one can say how to convert it.
    pickled = not files and (folder / _PICKLE).exists()
    return "eagle" if "fc.weight" in names or pickled else None


def load_eagle(folder: Path, target: Target) -> tuple[Head, list[WeightFile]]:
    """Load an EAGLE head for a target, and have the target keep what the head reads.

    Parameters
    ----------
    folder : Path
        ``config.json`` and safetensors, with the names of the authors', of vLLM's or of
        speculators' checkpoints. A quantized head stays as it is.
    target : Target
        The model it shall draft for; tapped for an EAGLE-3 head.

    Returns
    -------
    EagleHead or Eagle3Head
        In the target's type of activations.
    list of WeightFile
        The files it lies in.

    Raises
    ------
    LoadError
        Names the file and what is missing, damaged or made for another target.
    """
    path = folder / "config.json"
    config = read_object(path)
    kind = named_kind(config) or eagle_by_tensors(folder)
    if kind is None:
        raise LoadError(f"{path}: describes no EAGLE head, and no tensor is one's (fc.weight)")
    check_pair(read_eagle(config, kind, str(path)), kind, target, str(path))
    files = _files(folder)
    shapes = {name: shape for file in files for name, shape in file.shapes.items()}
    head, sources = head_for(config, kind, shapes, target, str(path))
    held: dict[str, Any] = {}
    for file in files:
        held |= mx.load(str(file.path))  # type: ignore[arg-type]
    arrays = {name: held[full] for name, full in sources.items()}
    dtype = target.body.norm.weight.dtype
    wanted = flat_weights(head)
    head.update(tree_unflatten([(name, _served(arrays[name], dtype)) for name in wanted]))
    if isinstance(head, Eagle3Head):
        head.restrict(_draft_ids(arrays, folder, target.core.args.vocab_size))
        _share_equal_embedding(head, target)
    head.eval()
    mx.eval(head.parameters(), [] if head.draft_ids is None else head.draft_ids)
    target.tap(head.taps)
    return head, files


def head_for(
    config: Mapping[str, Any], kind: EagleKind, shapes: Shapes, target: Target, where: str
) -> tuple[Head, dict[str, str]]:
    """Make a head without weights, once everything has been checked.

    Parameters
    ----------
    config : mapping
        Its ``config.json``.
    kind : {"eagle", "eagle3"}
        Of the head.
    shapes : mapping of str to tuple of int
        Of the checkpoint's tensors, by their names there.
    target : Target
        The model it shall draft for; read, and not tapped.
    where : str
        The config file, for messages.

    Returns
    -------
    EagleHead or Eagle3Head
        With the quantized modules that the checkpoint has.
    dict of str to str
        The checkpoint's names of what it needs, by the head's names.

    Raises
    ------
    LoadError
        Names what is missing, of another shape, or of no head that is known here.
    """
    read = read_eagle(config, kind, where)
    check_pair(read, kind, target, where)
    sources = _sources(shapes, kind)
    held = {name: tuple(shapes[full]) for name, full in sources.items()}
    head = _built(read, kind, target, held, where)
    parts = {name: Part(shape, (name,), itemgetter(name)) for name, shape in held.items()}
    quantized_as(head, parts, quantization_mode(config), where)
    _match(head, read, held, where)
    return head, sources


def _files(folder: Path) -> list[WeightFile]:
    paths = sorted(folder.glob("*.safetensors"))
    if paths:
        return [read_weight_file(path) for path in paths]
    if (folder / _PICKLE).exists():
        raise LoadError(
            f"{folder / _PICKLE}: weights in Python's pickle format, which runs code when it is "
            f'read; convert it once, in that folder: python -c "{_CONVERT}"'
        )
    raise LoadError(f"{folder}: no weights; expected *.safetensors")


def _renamed(name: str, kind: EagleKind) -> str:
    """Name of a checkpoint's tensor in the head."""
    name = name.removeprefix("model.")
    for start, own in _RENAMED:
        if name.startswith(start):
            name = own + name.removeprefix(start)
    if kind == "eagle3" and name.startswith("layers.0."):
        name = "midlayer." + name.removeprefix("layers.0.")
    return name


def _sources(shapes: Shapes, kind: EagleKind) -> dict[str, str]:
    """The checkpoint's names of the head's tensors, by the head's names."""
    found: dict[str, str] = {}
    for full in shapes:
        name = _renamed(full, kind)
        copied = kind == "eagle" and name in (_EMBEDDING, "lm_head.weight")  # the target's
        if not copied and not name.startswith(_UNUSED):
            found[name] = full
    return found


def _built(
    config: EagleConfig, kind: EagleKind, target: Target, shapes: Shapes, where: str
) -> Head:
    """The head without weights."""
    try:
        if kind == "eagle3":
            return Eagle3Head(config, target, own_embedding=_EMBEDDING in shapes)
        has_bias = "fc.bias" in shapes
        return EagleHead(config, target, bias=has_bias if config.bias is None else config.bias)
    except (LoadError, ValueError, KeyError) as error:  # the last two of an unknown rotation
        raise LoadError(f"{where}: {error}") from error


def _match(head: Head, read: EagleConfig, shapes: Shapes, where: str) -> None:
    """Refuse a checkpoint whose tensors are not those of the head, all of them and no others."""
    wanted = {name: tuple(value.shape) for name, value in flat_weights(head).items()}
    if isinstance(head, Eagle3Head):
        if read.draft_vocab_size < read.args.vocab_size or _OFFSETS in shapes:
            wanted[_OFFSETS] = (read.draft_vocab_size,)
        if _USED in shapes:
            wanted[_USED] = (read.args.vocab_size,)
    match_shapes(
        wanted,
        shapes,
        where,
        lacks=lambda names: f"the head lacks {names}; fetch the checkpoint again",
        strange=lambda names: (
            f"has tensors that are no part of such a head: {names}; it is of a variant that is not "
            "known here"
        ),
    )


def _served(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """Floats in the type of activations; packed weights as they are."""
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array


def _draft_ids(arrays: Mapping[str, mx.array], folder: Path, size: int) -> mx.array | None:
    """The target's ids of the draft vocabulary: its own number plus an offset, for each.

    Raises
    ------
    LoadError
        They lie outside of the vocabulary, repeat, or are not those that the head marks as used.
    """
    if _OFFSETS not in arrays:
        return None
    offsets = arrays[_OFFSETS].astype(mx.int64)
    ids = offsets + mx.arange(offsets.shape[0])
    if bool(mx.any((ids < 0) | (ids >= size)).item()):
        raise LoadError(
            f"{folder}: {_OFFSETS} leads out of the vocabulary of {size}; it must hold offsets, "
            "target id less draft id"
        )
    counts = mx.zeros((size,), mx.int32).at[ids].add(1)
    if bool(mx.any(counts > 1).item()):
        raise LoadError(f"{folder}: {_OFFSETS} names an id twice; it must hold offsets")
    used = arrays.get(_USED)
    if used is not None and not mx.array_equal(used.astype(mx.int32), counts).item():
        raise LoadError(f"{folder}: {_OFFSETS} and {_USED} name different ids; it is damaged")
    return ids.astype(mx.uint32)


def _share_equal_embedding(head: Eagle3Head, target: Target) -> None:
    """Keep no copy of the target's embedding; a quantized one cannot be compared."""
    own, table = head.get("embed_tokens"), target.body.embed_tokens
    if own is None or hasattr(table, "bits") or hasattr(own, "bits"):
        return
    if own.weight.shape == table.weight.shape and mx.array_equal(own.weight, table.weight).item():
        head.share_embedding()
