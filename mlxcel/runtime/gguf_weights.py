"""GGUF tensors as MLX arrays with the same values, and the safetensors files for them.

A block of 32 quantized values becomes one MLX group: ``scale * q + bias`` with the
file's own numbers. Which tensors a model has is not decided here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxcel.errors import LoadError
from mlxcel.runtime.cache_folder import Progress
from mlxcel.runtime.gguf_read import GgufFile, TensorInfo

__all__ = ["BITS", "GROUP", "Place", "write_weights"]

GROUP = 32
BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_BLOCK = {"Q4_0": (2, 16), "Q4_1": (4, 16), "Q8_0": (2, 32)}  # bytes of parameters, of values
_SHARD_BYTES = 2**30
_FP16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one GGUF tensor goes in the model.

    Attributes
    ----------
    path : str
        Path of the module.
    kind : {"weight", "bias"}
        Which of its parameters.
    shape : tuple of int
        Shape it must have.
    heads : int
        Heads whose rows the exporter has reordered; 0 for none.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    heads: int = 0


def write_weights(
    file: GgufFile,
    weights: list[tuple[TensorInfo, Place]],
    folder: Path,
    progress: Progress | None,
) -> None:
    """Write the tensors as safetensors files of about a gibibyte, and their index.

    Parameters
    ----------
    file : GgufFile
        Where the data is read from.
    weights : list of (TensorInfo, Place)
        What is written, in this order, and under which name.
    folder : Path
        An existing folder.
    progress : callable, optional
        Called with a label, the bytes of tensor data done and their total.

    Raises
    ------
    LoadError
        A tensor holds infinities or NaN.
    """
    total = sum(file.data(tensor.name).nbytes for tensor, _ in weights)
    done = held = 0
    shard: dict[str, NDArray[Any]] = {}
    places: dict[str, str] = {}
    for number, (tensor, weight) in enumerate(weights):
        parts = _convert_tensor(file, tensor, weight)
        shard.update(parts)
        held += sum(part.nbytes for part in parts.values())
        if held >= _SHARD_BYTES or number == len(weights) - 1:
            name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
            _write_shard(shard, folder / name)
            places.update(dict.fromkeys(shard, name))
            shard, held = {}, 0
        done += file.data(tensor.name).nbytes
        if progress is not None:
            progress("converting", done, total)
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _write_shard(shard: dict[str, NDArray[Any]], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(shard, path, metadata={"format": "mlx"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _convert_tensor(file: GgufFile, tensor: TensorInfo, weight: Place) -> dict[str, NDArray[Any]]:
    """Arrays of one tensor under their MLX names."""
    data = file.data(tensor.name)
    if tensor.type in BITS:
        parts = dict(zip(("weight", "scales", "biases"), _affine(data, tensor.type), strict=True))
    else:
        parts = {weight.kind: data}
    for part in parts.values():
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise LoadError(f"{file.path}: tensor {tensor.name} holds values that are not finite")
    return {
        f"{weight.path}.{name}": np.ascontiguousarray(_unpermute(part, weight.heads))
        for name, part in parts.items()
    }


def _affine(data: NDArray[np.uint8], kind: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Packed weights (uint32), scales and biases of quantized rows, ``(rows, bytes)``."""
    rows = data.shape[0]
    head, body = _BLOCK[kind]
    blocks = data.reshape(rows, -1, head + body)  # (rows, groups, bytes)
    params = np.ascontiguousarray(blocks[..., :head]).view("<f2")
    quants = blocks[..., head:]
    scales = params[..., 0]
    if kind == "Q8_0":
        packed = quants ^ np.uint8(0x80)  # signed q becomes q + 128
    else:
        low, high = quants & np.uint8(15), quants >> np.uint8(4)
        # Element i of a group is low nibble i, then high nibble i - 16; MLX wants them in order.
        q = np.concatenate([low, high], axis=-1)
        packed = q[..., 0::2] | (q[..., 1::2] << np.uint8(4))
    packed = np.ascontiguousarray(packed).reshape(rows, -1).view("<u4")
    if kind == "Q4_1":
        return packed, scales, params[..., 1]
    # Scales that are not finite are refused by the caller, by name; numpy need not warn too.
    with np.errstate(invalid="ignore", over="ignore"):
        biases = scales.astype(np.float32) * np.float32(-8.0 if kind == "Q4_0" else -128.0)
        if np.abs(biases).max() > _FP16_MAX:
            return packed, scales.astype(np.float32), biases
        return packed, scales, biases.astype(np.float16)


def _unpermute(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo the llama exporter's order of rows within each head; 0 heads means as it is."""
    if not heads:
        return rows
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
