"""From a checkpoint to the head that it was published with; checked before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mlxcel.errors import LoadError
from mlxcel.models.drafters.mtp import MTPHead, flat_weights
from mlxcel.models.drafters.published_mtp import (
    PUBLISHED_TYPE,
    Part,
    centred_norms,
    check_config,
    head_name,
    parts_of,
    quantization_mode,
    quantized_as,
)
from mlxcel.models.target import Target
from mlxcel.runtime.checkpoint import read_object
from mlxcel.runtime.weight_files import WeightFile, listed, read_weight_file

__all__ = ["load_published_mtp"]

_INDEX = "model.safetensors.index.json"
_CONVOLUTION = "conv1d.weight"


def load_published_mtp(folder: Path, target: Target) -> tuple[MTPHead, list[WeightFile]]:
    """Load the head that lies in a checkpoint.

    Parameters
    ----------
    folder : Path
        A checkpoint of the target that has kept its head (the original, or a conversion that
        did), the part of one that holds it, or a folder with the head alone (``model_type``
        ``qwen3_5_mtp``). A quantized head stays as it is.
    target : Target
        The model it shall draft for.

    Returns
    -------
    MTPHead
        In the target's type of activations.
    list of WeightFile
        The files it lies in.

    Raises
    ------
    LoadError
        Names the folder and what is missing, damaged or made for another target.
    """
    config = read_object(folder / "config.json")
    head = MTPHead(target)  # refuses a kind of target before its fields are compared
    check_config(config, target, str(folder / "config.json"))
    files = _files(folder)
    shapes = _shapes(files)
    parts = parts_of(shapes, bare=config.get("model_type") == PUBLISHED_TYPE)
    _check_index(folder)
    if not parts:
        raise LoadError(_dropped(folder, config))
    wanted = _matched(head, parts, quantization_mode(config), str(folder))
    sources = {source for name in wanted for source in parts[name].sources}
    used = [file for file in files if not sources.isdisjoint(file.shapes)]
    arrays: dict[str, mx.array] = {}
    for file in used:
        held: Any = mx.load(str(file.path))
        arrays |= held
    _fill(head, {name: parts[name] for name in wanted}, arrays, _is_raw(shapes))
    return head, used


def _fill(
    head: MTPHead, parts: Mapping[str, Part], arrays: Mapping[str, mx.array], raw: bool | None
) -> None:
    dtype = head._target.body.norm.weight.dtype
    made = {name: part.make(arrays) for name, part in parts.items()}
    made = {
        name: value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        for name, value in made.items()
    }
    norms = {name: value for name, value in made.items() if value.ndim == 1}
    for name in centred_norms(norms, raw=raw):
        made[name] = made[name] + 1
    head.update(tree_unflatten(list(made.items())))
    head.eval()
    mx.eval(head.parameters())


def _matched(head: MTPHead, parts: Mapping[str, Part], mode: str, where: str) -> list[str]:
    """Names of the head's tensors, all of which the checkpoint has, with the right shapes."""
    quantized_as(head, parts, mode, where)
    wanted = {name: tuple(value.shape) for name, value in flat_weights(head).items()}
    missing = sorted(wanted.keys() - parts.keys())
    if missing:
        raise LoadError(f"{where}: the head lacks {listed(missing)}; fetch the checkpoint again")
    for name, shape in wanted.items():
        if parts[name].shape != shape:
            source = parts[name].sources[0]
            raise LoadError(
                f"{where}: {source} makes {name} of shape {parts[name].shape}, but the target's "
                f"head has {shape}; it was made for another target"
            )
    unknown = sorted(parts.keys() - wanted.keys())
    if unknown:
        raise LoadError(
            f"{where}: has tensors that are no part of this target's head: {listed(unknown)}"
        )
    return list(wanted)


def _is_raw(shapes: Mapping[str, tuple[int, ...]]) -> bool | None:
    """Whether the target's tensors beside the head are as published; ``None`` without any.

    Convolutions end in the kernel's length there, and in one channel in MLX's order.
    """
    found = [shape for name, shape in shapes.items() if name.endswith(_CONVOLUTION)]
    return None if not found else any(shape[-1] != 1 for shape in found)


def _files(folder: Path) -> list[WeightFile]:
    """All safetensors files there are: a head may lie in one of its own, or in one shard."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise LoadError(f"{folder}: no weights; expected *.safetensors")
    return [read_weight_file(path) for path in paths]


def _shapes(files: list[WeightFile]) -> dict[str, tuple[int, ...]]:
    return {name: shape for file in files for name, shape in file.shapes.items()}


def _check_index(folder: Path) -> None:
    """A head that the index puts into files that are not there has not been fetched whole."""
    path = folder / _INDEX
    if not path.exists():
        return
    places = read_object(path).get("weight_map")
    if not isinstance(places, dict):
        raise LoadError(f"{path}: weight_map must be an object")
    for name, place in sorted(places.items()):
        if head_name(name) is not None and not (folder / str(place)).exists():
            raise LoadError(f"{folder / str(place)}: missing; {path.name} puts {name} there")


def _dropped(folder: Path, config: Mapping[str, Any]) -> str:
    kind = (config.get("text_config") or config).get("model_type") or config.get("model_type")
    return (
        f"{folder}: {kind} without its multi-token-prediction head: no tensor is named mtp.*. "
        "Conversions by mlx-lm drop it. Take it from the original checkpoint (the shard that its "
        f"{_INDEX} names for mtp.fc.weight, with config.json, is enough) or from a conversion that "
        "kept it, as drafter mtp:FOLDER or mtp:ORG/NAME"
    )
