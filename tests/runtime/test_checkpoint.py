"""Checkpoint folders: whatever is wrong is named before a weight is read."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxcel.errors import LoadError
from mlxcel.runtime import checkpoint
from mlxcel.runtime.checkpoint import resolve, validate_folder
from tests.support.gguf_files import write_gguf

VOCAB, HIDDEN = 20, 32
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder with everything in place."""
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCAB}))
    arrays = {"model.embed_tokens.weight": np.zeros((VOCAB, HIDDEN), np.float32)}
    save_file(arrays | {"model.norm.weight": np.ones(HIDDEN, np.float32)}, path / WEIGHTS)
    vocab = {f"t{i}": i for i in range(VOCAB - 1)}
    write_tokenizer(path, vocab, [{"id": VOCAB - 1, "content": "<end>"}])
    return path


def write_tokenizer(path: Path, vocab: Any, added: list[dict[str, Any]]) -> None:
    """A ``tokenizer.json`` with as much as is looked at."""
    content = {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(content))


def refused(path: Path, *named: str) -> None:
    """The folder is refused, in words that name all these."""
    with pytest.raises(LoadError) as caught:
        validate_folder(path)
    for part in named:
        assert part in str(caught.value)


def header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the header of a safetensors file."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    fields = json.loads(content[8 : 8 + length])
    change(fields)
    new = json.dumps(fields).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])


def test_a_good_folder(folder: Path) -> None:
    (weights,) = validate_folder(folder)
    assert weights.shapes["model.embed_tokens.weight"] == (VOCAB, HIDDEN)
    found = resolve(folder, cache_dir=folder)
    assert (found.path, found.name, found.source) == (folder, "tiny", "folder")
    assert found == resolve(str(folder), cache_dir=folder)


def test_the_fingerprint_changes_with_config_and_weights(folder: Path) -> None:
    seen = [resolve(folder, cache_dir=folder).fingerprint]
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 5}')
    seen.append(resolve(folder, cache_dir=folder).fingerprint)
    arrays = load_file(folder / WEIGHTS)
    arrays["model.embed_tokens.weight"][3, 5] = 1.0
    save_file(arrays, folder / WEIGHTS)
    seen.append(resolve(folder, cache_dir=folder).fingerprint)
    assert len(set(seen)) == 3
    assert all(len(value) == 64 for value in seen)


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "solar_open", "joyai_llm_flash"])
def test_model_types_and_their_other_names(folder: Path, model_type: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    validate_folder(folder)


def quantized(table: str) -> str:
    return f'{{"model_type": "llama", "quantization": {table}}}'


@pytest.mark.parametrize(
    "table", ["null", '{"group_size": 64, "bits": 4, "a": {"bits": 8}, "b": false}']
)
def test_quantization_by_layer_is_good(folder: Path, table: str) -> None:
    (folder / "config.json").write_text(quantized(table))
    validate_folder(folder)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("", "is empty"),
        ("{", "not JSON"),
        ("[1]", "object, not list"),
        ("[" * 100_000, "not JSON"),
        ("{}", "model_type"),
        ('{"model_type": 3}', "got 3"),
        ('{"model_type": "unheard"}', "'unheard' is not known"),
        ('{"model_type": "../utils"}', "not known"),
        ('{"model_type": "cache"}', "not known"),
        ('{"model_type": "llama", "model_file": "evil.py"}', "evil.py"),
        (quantized('"4bit"'), "quantization must be an object or null, got '4bit'"),
        (quantized('{"group_size": 32}'), "quantization needs bits"),
        (quantized('{"group_size": null, "bits": 4}'), "quantization needs group_size"),
        (quantized('{"group_size": 0, "bits": 4}'), "group_size must be a positive whole number"),
        (quantized('{"group_size": 64, "bits": -4}'), "bits must be a positive whole number"),
        (quantized('{"group_size": 64, "bits": true}'), "bits must be a positive whole number"),
        (quantized('{"group_size": 64, "bits": 4, "a": {"bits": 0}}'), "quantization: a: bits"),
    ],
)
def test_bad_configs(folder: Path, config: str, named: str) -> None:
    (folder / "config.json").write_text(config)
    refused(folder, "config.json", named)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_directory_or_bytes_instead_of_the_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, name, "directory")
    (folder / name).rmdir()
    (folder / name).write_bytes(b"\xff\xfe\0\1 binary")
    refused(folder, name)
    (folder / name).write_bytes(b"")
    refused(folder, name, "empty")


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    for name, named in (
        ("tokenizer.json", "no tokenizer"),
        (WEIGHTS, "no weights"),
        ("config.json", "config.json: missing"),
    ):
        (folder / name).unlink()
        refused(folder, str(folder), named)
    refused(tmp_path / "none", "none")


def test_an_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    refused(folder, "config.json", "Permission denied")


def test_truncated_and_padded_weights(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    size = len(content)
    for length in [*range(200), *range(200, size, 97), size - 1]:
        (folder / WEIGHTS).write_bytes(content[:length])
        refused(folder, WEIGHTS)
    refused(folder, f"expected {size} bytes", f"found {size - 1}")
    (folder / WEIGHTS).write_bytes(content + b"\0\0")
    refused(folder, f"expected {size} bytes", f"found {size + 2}")


def test_a_git_lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(folder, WEIGHTS, "git lfs pull")


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["model.norm.weight"].pop("dtype"),
        lambda fields: fields["model.norm.weight"].update(shape=[5]),
        lambda fields: fields["model.norm.weight"].update(shape="x"),
        lambda fields: fields["model.norm.weight"].update(data_offsets=[0]),
        lambda fields: fields["model.norm.weight"].update(data_offsets=[-4, 124]),
        lambda fields: fields["model.norm.weight"].update(dtype=["F32"]),
        lambda fields: fields.update({"model.norm.weight": 3}),
    ],
)
def test_damaged_headers(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    header(folder / WEIGHTS, change)
    refused(folder, WEIGHTS, "damaged safetensors header")


def test_an_index_that_does_not_fit(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    for content, named in (
        ({"weight_map": {"model.norm.weight": "model-2.safetensors"}}, "model-2.safetensors"),
        ({"weight_map": {"lm_head.weight": WEIGHTS}}, "no tensor lm_head.weight"),
        ({"weight_map": {"lm_head.weight": ["x"]}}, "missing"),
        ({"weight_map": []}, "weight_map"),
        ({}, "weight_map"),
    ):
        index.write_text(json.dumps(content))
        refused(folder, named)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": WEIGHTS}}))
    validate_folder(folder)


def test_a_missing_shard_without_an_index(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    refused(folder, "model-00002-of-00002.safetensors: missing")


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    write_tokenizer(folder, {"a": 0, "z": 49151}, [])
    refused(folder, "tokenizer.json", "49152 ids", f"{VOCAB} rows")
    write_tokenizer(folder, {"a": 0}, [{"id": VOCAB, "content": "<tool>"}])
    refused(folder, f"{VOCAB + 1} ids", f"{VOCAB} rows")
    write_tokenizer(folder, [["a", 0.0]] * (VOCAB + 1), [])
    refused(folder, f"{VOCAB + 1} ids")
    write_tokenizer(folder, {"a": 0}, [{"id": VOCAB, "content": "<image_soft_token>"}])
    validate_folder(folder)


def test_a_quantized_embedding_counts_its_rows(folder: Path) -> None:
    packed = {"model.embed_tokens.weight": np.zeros((VOCAB, 4), np.uint32)}
    scales = {"model.embed_tokens.scales": np.zeros((VOCAB, 1), np.float16)}
    save_file(packed | scales, folder / WEIGHTS)
    validate_folder(folder)
    write_tokenizer(folder, {"a": VOCAB}, [])
    refused(folder, f"{VOCAB + 1} ids", f"{VOCAB} rows")


@pytest.mark.parametrize(
    "content", ["{}", '{"model": 1}', '{"model": {"vocab": 1}}', '{"model": {"vocab": {"a": "b"}}}']
)
def test_a_tokenizer_file_that_is_none(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    refused(folder, "tokenizer.json: not a tokenizer")


def test_other_tokenizer_files(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"")
    refused(folder, "tokenizer.model: is empty")
    (folder / "tokenizer.model").write_bytes(b"x")
    validate_folder(folder)


@pytest.mark.parametrize("target", ["./nothing", "/no/such/folder", "a/b/c", "plain", "", "~x/y"])
def test_names_that_lead_nowhere(target: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        resolve(target, cache_dir=tmp_path)
    assert repr(target) in str(caught.value)


def test_a_file_and_a_missing_gguf(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is a file"):
        resolve(folder / "config.json", cache_dir=tmp_path)
    with pytest.raises(LoadError, match=r"none\.gguf"):
        resolve("none.gguf", cache_dir=tmp_path)


def test_a_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.Q8_0.gguf")
    found = resolve(tmp_path / "tiny.Q8_0.gguf", cache_dir=tmp_path / "cache")
    assert (found.name, found.source) == ("tiny.Q8_0", "gguf")
    assert found.path.parent == tmp_path / "cache" / "gguf"


def test_hub_names(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx_lm.utils

    monkeypatch.setattr(mlx_lm.utils, "_download", lambda name: folder)
    found = resolve("some-org/Some-Model", cache_dir=tmp_path)
    assert (found.path, found.name, found.source) == (folder, "Some-Model", "hub")

    def fail(name: str) -> Path:
        raise RuntimeError("404 Client Error\nmany more lines")

    monkeypatch.setattr(mlx_lm.utils, "_download", fail)
    with pytest.raises(LoadError, match=r"org/model.*RuntimeError: 404 Client Error\)") as caught:
        resolve("org/model", cache_dir=tmp_path)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_checking_does_not_import_mlx_code(folder: Path) -> None:
    assert "mlx" not in vars(checkpoint)
