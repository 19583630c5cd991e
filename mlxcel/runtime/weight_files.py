"""Headers of safetensors files: what a folder holds, and whether each file is complete."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.errors import LoadError

__all__ = ["WeightFile", "listed", "match_shapes", "read_weight_file", "read_weight_files"]

_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
_MAX_SHARDS = 10_000
_SHOWN = 4  # names of a list in a message
_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One safetensors file.

    Attributes
    ----------
    path : Path
        The file.
    size : int
        Its bytes.
    header_bytes : int
        Bytes before the first tensor.
    shapes : mapping of str to tuple of int
        Shape of every tensor.
    """

    path: Path
    size: int
    header_bytes: int
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.size - self.header_bytes


def read_weight_files(folder: Path) -> list[WeightFile]:
    """Headers of the files that mlx-lm loads from a folder, sorted by name.

    Parameters
    ----------
    folder : Path
        A checkpoint folder; files other than ``model*.safetensors`` are not weights.

    Raises
    ------
    LoadError
        There is none, a numbered one is missing, or one is damaged, truncated or padded.
    """
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise LoadError(f"{folder}: no weights; expected model*.safetensors")
    present = {path.name for path in paths}
    for path in paths:
        for name in _siblings(path.name):
            if name not in present:
                raise LoadError(f"{folder / name}: missing; {path.name} is there")
    return [read_weight_file(path) for path in paths]


def _siblings(name: str) -> list[str]:
    """All names of the numbered set that ``name`` belongs to, if it does."""
    match = _SHARD.fullmatch(name)
    if match is None or int(match[3]) > _MAX_SHARDS:
        return []
    stem, digits = match[1], len(match[2])
    numbers = range(1, int(match[3]) + 1)
    return [f"{stem}-{i:0{digits}d}-of-{match[3]}.safetensors" for i in numbers]


def listed(names: list[str]) -> str:
    """Names of tensors for a message, the first few of many."""
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def match_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    held: Mapping[str, tuple[int, ...]],
    where: str,
    *,
    lacks: Callable[[str], str],
    strange: Callable[[str], str],
) -> None:
    """Refuse a checkpoint that has not all tensors of a module, in their shapes, and no others.

    Parameters
    ----------
    wanted, held : mapping of str to tuple of int
        Shapes by name: of the module, and of the checkpoint.
    where : str
        The checkpoint, for messages.
    lacks, strange : callable
        Say what is wrong, and what to do, of the names that are missing and of those too many.

    Raises
    ------
    LoadError
        A tensor is missing, has another shape, or is no part of the module.
    """
    missing = sorted(wanted.keys() - held.keys())
    if missing:
        raise LoadError(f"{where}: {lacks(listed(missing))}")
    for name, shape in wanted.items():
        if held[name] != shape:
            raise LoadError(f"{where}: {name} has shape {held[name]}, expected {shape}")
    unknown = sorted(held.keys() - wanted.keys())
    if unknown:
        raise LoadError(f"{where}: {strange(listed(unknown))}")


def read_weight_file(path: Path) -> WeightFile:
    """Header of one safetensors file.

    Raises
    ------
    LoadError
        It is damaged, truncated or padded.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if length < 2 or length > size - 8:
                raise LoadError(_not_safetensors(path, size, start))
            content = file.read(length)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(content)
        header.pop("__metadata__", None)
        ends = [_end(entry) for entry in header.values()]
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{path}: damaged safetensors header: {error}") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        state = "truncated" if size < expected else "longer than its contents"
        raise LoadError(f"{path}: {state}: expected {expected} bytes, found {size}; fetch it again")
    return WeightFile(path=path, size=size, header_bytes=8 + length, shapes=shapes)


def _not_safetensors(path: Path, size: int, start: bytes) -> str:
    if start == b"version ":
        return f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` there"
    if size == 0:
        return f"{path}: is empty"
    return f"{path}: not a complete safetensors file ({size} bytes, begins with {start!r})"


def _end(entry: dict[str, Any]) -> int:
    """Where a tensor's data ends; raises ValueError if its offsets do not fit its shape."""
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    if not all(type(value) is int and value >= 0 for value in (begin, end, *shape)):
        raise ValueError(f"bad shape or offsets in {entry}")
    item = _ITEM_BYTES.get(entry["dtype"])
    if begin > end or (item is not None and end - begin != item * math.prod(shape)):
        raise ValueError(f"offsets {begin}-{end} do not fit {entry['dtype']} of shape {shape}")
    return int(end)
