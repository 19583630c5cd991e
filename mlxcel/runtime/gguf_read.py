"""Reading a GGUF file: every length is checked against the file before it is used.

The ``gguf`` package parses; it trusts the counts in the header, so a short walk over
the header goes first. What a field or tensor means belongs to the callers.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mlxcel.errors import LoadError

__all__ = ["GgufFile", "TensorInfo", "read_gguf", "source_digest"]

_SUPPORTED = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0"}
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
# What the parser raises on contents it cannot make sense of.
_PARSE_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it; ``shape`` is row-major, as in NumPy."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def type(self) -> str:
        """Name of the type, such as ``Q4_1``."""
        return _type_name(self.type_id)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file.

    Attributes
    ----------
    path : Path
        The file.
    tensors : tuple of TensorInfo
        In the order of the file.
    header_bytes : int
        Bytes before the tensor data.
    """

    path: Path
    tensors: tuple[TensorInfo, ...]
    header_bytes: int
    _reader: Any

    def data(self, name: str) -> NDArray[Any]:
        """Contents of a tensor: floats, or uint8 ``(rows, bytes per row)`` when quantized."""
        found: NDArray[Any] = next(t.data for t in self._reader.tensors if t.name == name)
        return found

    def has(self, key: str) -> bool:
        """Whether the metadata has this key."""
        return key in self._reader.fields

    def integer(self, key: str, default: int | None = None) -> int:
        """Metadata integer; a per-layer list is accepted when all its values are equal."""
        value = self._value(key, default)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Metadata number, finite, as the shortest decimal that means the same float32."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number", value)
        if not math.isfinite(value):
            raise self._wrong(key, "a finite number", value)
        return float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """Metadata string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Metadata boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean", value)
        return value

    def texts(self, key: str) -> list[str]:
        """Metadata list of strings."""
        return self._list(key, str, "a list of strings")

    def integers(self, key: str) -> list[int]:
        """Metadata list of integers."""
        return self._list(key, int, "a list of integers")

    def numbers(self, key: str) -> list[float]:
        """Metadata list of floats."""
        return self._list(key, float, "a list of numbers")

    def _list(self, key: str, kind: type, what: str) -> list[Any]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
            raise self._wrong(key, what, value)
        return value

    def _value(self, key: str, default: object) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            if default is None:
                raise LoadError(f"{self.path}: the GGUF metadata has no {key!r}")
            return default
        return _parsed(self.path, field.contents)

    def _wrong(self, key: str, wanted: str, value: object) -> LoadError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return LoadError(f"{self.path}: GGUF metadata {key!r} must be {wanted}, got {shown}")


def read_gguf(path: Path) -> GgufFile:
    """Open a GGUF file and check that header and tensor data are complete.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    LoadError
        Not a GGUF file, truncated, of an unknown version, with a tensor of a type that has no
        exact MLX form, or the ``gguf`` package is missing.
    """
    tensors, header_bytes = _walk(path)
    for tensor in tensors:
        if tensor.type_id not in _SUPPORTED:
            raise LoadError(
                f"{path}: tensor {tensor.name} has type {_type_name(tensor.type_id)}, which has no "
                f"exact MLX form; take a file with {', '.join(_SUPPORTED.values())} tensors only"
            )
    reader = _parsed(path, lambda: _package(path).GGUFReader(path))
    return GgufFile(path, tensors, header_bytes, reader)


def source_digest(path: Path) -> str:
    """Hex digest that changes with the file's header, size or modification time.

    Raises
    ------
    LoadError
        The file is not a complete GGUF file.
    """
    header_bytes = _walk(path)[1]
    try:
        stat = path.stat()
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(header_bytes))
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def _package(path: Path) -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise LoadError(
            f"{path}: reading GGUF files needs the gguf package; run `pip install mlxcel[demo]`"
        ) from error
    return cast(ModuleType, gguf)


def _parsed(path: Path, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except _PARSE_ERRORS as error:
        raise LoadError(f"{path}: broken GGUF file: {error}") from error


def _type_name(type_id: int) -> str:
    import gguf

    try:
        return str(gguf.GGMLQuantizationType(type_id).name)
    except ValueError:
        return f"number {type_id}"


class _Cursor:
    """A position in the file that cannot leave it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def skip(self, count: int) -> int:
        """Move past ``count`` bytes; gives where they begin."""
        start = self.at
        if count > len(self.data) - start:
            raise LoadError(
                f"{self.path}: truncated or damaged GGUF header: {count} bytes wanted at byte "
                f"{start}, the file has {len(self.data)}"
            )
        self.at = start + count
        return start

    def u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self.skip(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self.skip(8))[0])

    def string(self) -> bytes:
        start = self.skip(self.u64())
        return self.data[start : self.at]

    def value(self, kind: int) -> None:
        """Skip one metadata value."""
        if kind == _STRING:
            self.skip(self.u64())
        elif kind == _ARRAY:
            self.array()
        elif kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        else:
            raise LoadError(f"{self.path}: broken GGUF file: value of unknown type {kind}")

    def array(self) -> None:
        kind, count = self.u32(), self.u64()
        if kind in _SCALAR_BYTES:
            self.skip(count * _SCALAR_BYTES[kind])
        elif kind == _STRING:
            for _ in range(count):
                self.skip(self.u64())
        else:
            raise LoadError(f"{self.path}: broken GGUF file: array of unknown type {kind}")


def _walk(path: Path) -> tuple[tuple[TensorInfo, ...], int]:
    """Tensors and header size of the file, with every length checked."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start[:4] != b"GGUF":
                raise LoadError(f"{path}: not a GGUF file: it begins with {start[:4]!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _walk_header(_Cursor(path, data))
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _walk_header(cursor: _Cursor) -> tuple[tuple[TensorInfo, ...], int]:
    cursor.skip(4)
    version = cursor.u32()
    if version not in (2, 3):
        raise LoadError(
            f"{cursor.path}: GGUF version {version} is not supported (2 and 3, little-endian, are)"
        )
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    alignment = 32
    for _ in range(pair_count):
        key, kind = cursor.string(), cursor.u32()
        if key == b"general.alignment" and kind == 4:
            alignment = cursor.u32()
        else:
            cursor.value(kind)
    if alignment <= 0 or alignment & (alignment - 1):
        raise LoadError(f"{cursor.path}: broken GGUF file: alignment {alignment}")
    tensors = [_tensor_info(cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    _check_data(cursor, tensors, data_start)
    return tuple(tensors), data_start


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string().decode("utf-8", "replace")
    count = cursor.u32()
    if not 1 <= count <= _MAX_DIMS:
        raise LoadError(f"{cursor.path}: broken GGUF file: tensor {name} has {count} dimensions")
    shape = tuple(cursor.u64() for _ in range(count))[::-1]
    return TensorInfo(name, shape, cursor.u32(), cursor.u64())


def _check_data(cursor: _Cursor, tensors: Sequence[TensorInfo], data_start: int) -> None:
    """Check that the data of every tensor of a known type lies inside the file."""
    sizes = {int(kind): size for kind, size in _package(cursor.path).GGML_QUANT_SIZES.items()}
    for tensor in tensors:
        # A type without a known size is refused by name later, before its data is touched.
        block, block_bytes = sizes.get(tensor.type_id, (1, 0))
        if tensor.shape[-1] % block or 0 in tensor.shape:
            raise LoadError(
                f"{cursor.path}: broken GGUF file: tensor {tensor.name} has shape "
                f"{tensor.shape}, its type needs rows of a multiple of {block}"
            )
        end = data_start + tensor.offset + math.prod(tensor.shape) // block * block_bytes
        if end > len(cursor.data):
            raise LoadError(
                f"{cursor.path}: truncated GGUF file: tensor {tensor.name} ends at byte {end}, "
                f"the file has {len(cursor.data)}; fetch it again"
            )
