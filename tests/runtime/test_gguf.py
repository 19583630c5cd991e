"""GGUF conversion: exact values for every type, refusals by name, folders whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from mlx_lm.utils import load_model, load_tokenizer
from safetensors.numpy import load_file

import mlxcel
from mlxcel.errors import LoadError
from mlxcel.runtime import cache_folder, gguf_read
from mlxcel.runtime.gguf import convert, convert_once
from tests.support.gguf_files import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, TOKENS, write_gguf

TYPES = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"]
Q_PROJ = "model.layers.0.self_attn.q_proj"


def converted(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """A tiny file and its converted folder."""
    source, folder = tmp_path / "tiny.gguf", tmp_path / "out"
    write_gguf(source, **options)
    convert(source, folder)
    return source, folder


def config_of(folder: Path) -> dict[str, Any]:
    """The folder's config."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the folder."""
    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def dense(weights: dict[str, np.ndarray], path: str, bits: int) -> np.ndarray:
    """A module's weight in float32, by the definition of affine quantization."""
    weight = weights[f"{path}.weight"]
    if f"{path}.scales" not in weights:
        return weight.astype(np.float32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    q = (weight[..., None] >> shifts) & np.uint32(2**bits - 1)
    scales, biases = (weights[f"{path}.{n}"].astype(np.float32) for n in ("scales", "biases"))
    groups = q.reshape(*scales.shape, 32).astype(np.float32)
    return (groups * scales[..., None] + biases[..., None]).reshape(weight.shape[0], -1)


def exporter_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """What the llama exporter does to q and k: row by row, so that it is plain to see."""
    half = rows.shape[0] // heads // 2
    order = [
        h * 2 * half + side * half + i for h in range(heads) for i in range(half) for side in (0, 1)
    ]
    return rows[order]


def original(source: Path) -> dict[str, np.ndarray]:
    """Tensors of the file in float32, by the gguf package."""
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(source).tensors}


@pytest.mark.parametrize("kind", TYPES)
def test_values_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    source, folder = converted(tmp_path, kind=kind)
    before, after = original(source), weights_of(folder)
    bits = 8 if kind == "Q8_0" else 4
    for name, path in {
        "token_embd": "model.embed_tokens",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
        "blk.1.attn_output": "model.layers.1.self_attn.o_proj",
        "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
        "output_norm": "model.norm",
        "blk.1.ffn_norm": "model.layers.1.post_attention_layernorm",
    }.items():
        np.testing.assert_array_equal(dense(after, path, bits), before[f"{name}.weight"], name)
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        path = f"model.layers.1.self_attn.{name}_proj"
        np.testing.assert_array_equal(
            exporter_order(dense(after, path, bits), heads), before[f"blk.1.attn_{name}.weight"]
        )


@pytest.mark.parametrize("kind", TYPES)
def test_mlx_reads_the_same_values(tmp_path: Path, kind: str) -> None:
    source, folder = converted(tmp_path, kind=kind, tied=False)
    model, _ = load_model(folder)
    layer = model.lm_head
    weight = layer.weight
    if hasattr(layer, "scales"):
        scales, biases = (a.astype(mx.float32) for a in (layer.scales, layer.biases))
        weight = mx.dequantize(weight, scales, biases, layer.group_size, layer.bits)
    found = np.array(weight.astype(mx.float32))
    np.testing.assert_array_equal(found, original(source)["output.weight"])
    assert mx.isfinite(model(mx.array([[1, 2, 3]]))).all()


def test_unpermuted_heads_give_the_attention_of_the_exporter(tmp_path: Path) -> None:
    """Rotating pairs (2i, 2i+1) of the file's rows is rotating (i, i + half) of ours."""
    source, folder = converted(tmp_path, kind="F32")
    x = np.random.default_rng(1).normal(size=HIDDEN).astype(np.float32)
    theirs = (original(source)["blk.0.attn_q.weight"] @ x).reshape(1, HEADS, 1, HEAD_DIM)
    ours = (weights_of(folder)[f"{Q_PROJ}.weight"] @ x).reshape(1, HEADS, 1, HEAD_DIM)
    rope = {"base": 1e4, "scale": 1.0, "offset": 5}
    a = mx.fast.rope(mx.array(theirs), HEAD_DIM, traditional=True, **rope)
    b = mx.fast.rope(mx.array(ours), HEAD_DIM, traditional=False, **rope)
    np.testing.assert_allclose(
        np.array(a).reshape(HEADS, -1, 2).swapaxes(1, 2), np.array(b).reshape(HEADS, 2, -1), 1e-5
    )


def test_mixed_types_are_described_per_module(tmp_path: Path) -> None:
    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "F16", "output.weight": "F32"}
    source, folder = converted(tmp_path, kind=lambda name: kinds.get(name, "Q4_1"), tied=False)
    quantization = config_of(folder)["quantization"]
    assert (quantization["bits"], quantization["group_size"]) == (4, 32)
    assert quantization["model.embed_tokens"]["bits"] == 8
    assert quantization[Q_PROJ] is False
    assert quantization["lm_head"] is False
    assert config_of(folder)["tie_word_embeddings"] is False
    model, _ = load_model(folder)
    assert model.model.embed_tokens.bits == 8
    assert model.model.layers[1].self_attn.q_proj.bits == 4
    found = np.array(model.lm_head.weight)
    np.testing.assert_array_equal(found, original(source)["output.weight"])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_scales_too_large_for_half_precision(tmp_path: Path, kind: str) -> None:
    source, folder = converted(tmp_path, kind=kind, scale=1e5)
    after = weights_of(folder)
    assert after["model.embed_tokens.scales"].dtype == np.float32
    bits = 8 if kind == "Q8_0" else 4
    np.testing.assert_array_equal(
        dense(after, "model.embed_tokens", bits), original(source)["token_embd.weight"]
    )


def test_config_says_what_the_metadata_says(tmp_path: Path) -> None:
    _, folder = converted(tmp_path, kind="Q4_1")
    config = config_of(folder)
    wanted = {
        "model_type": "llama",
        "head_dim": HEAD_DIM,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "vocab_size": len(TOKENS),
        "bos_token_id": 1,
        "eos_token_id": [0, 2],
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    assert {key: config[key] for key in wanted} == wanted


def test_qwen2_keeps_its_rows_and_biases(tmp_path: Path) -> None:
    source, folder = converted(tmp_path, arch="qwen2", pre="qwen2", kind="Q8_0")
    before, after = original(source), weights_of(folder)
    np.testing.assert_array_equal(dense(after, Q_PROJ, 8), before["blk.0.attn_q.weight"])
    np.testing.assert_array_equal(after[f"{Q_PROJ}.bias"], before["blk.0.attn_q.bias"])
    model, _ = load_model(folder)
    assert mx.isfinite(model(mx.array([[1, 2, 3]]))).all()


def test_rope_scaling(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    _, folder = converted(tmp_path, extra=linear)
    assert config_of(folder)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    with pytest.raises(LoadError, match="yarn"):
        converted(tmp_path, extra=linear | {"llama.rope.scaling.type": "yarn"})


def test_llama3_frequency_factors_are_recognised(tmp_path: Path) -> None:
    length = 2 * np.pi * 5e5 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = (8192 / length - 1) / 3
    factors = np.select([length > 8192, length < 2048], [32, 1], 1 / ((1 - smooth) / 32 + smooth))
    extra = {"llama.rope.freq_base": 5e5}
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}
    _, folder = converted(tmp_path, extra=extra, tensors=tensors)
    assert config_of(folder)["rope_scaling"]["rope_type"] == "llama3"
    assert config_of(folder)["rope_scaling"]["factor"] == 32.0
    odd = {"rope_freqs.weight": (factors * 1.5).astype(np.float32)}
    with pytest.raises(LoadError, match=r"rope_freqs\.weight"):
        converted(tmp_path, extra=extra, tensors=odd)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": lambda n: "Q5_0" if "ffn_up" in n else "Q8_0"}, ["blk.0.ffn_up", "Q5_0", "Q4_1"]),
        ({"kind": "BF16"}, ["BF16", "F32, F16"]),
        ({"arch": "gemma"}, ["'gemma'", "llama and qwen2"]),
        ({"drop": ("llama.block_count",)}, ["llama.block_count"]),
        ({"drop": ("tokenizer.ggml.tokens",)}, ["tokenizer.ggml.tokens"]),
        ({"drop": ("tokenizer.ggml.merges",)}, ["tokenizer.ggml.merges"]),
        ({"drop": ("blk.1.ffn_norm.weight",)}, ["blk.1.ffn_norm.weight", "missing"]),
        ({"tensors": {"blk.0.extra.weight": np.zeros((4, 32), "f4")}}, ["blk.0.extra.weight"]),
        ({"extra": {"llama.block_count": "two"}}, ["llama.block_count", "'two'"]),
        ({"extra": {"llama.block_count": 2**32 - 1}}, ["4294967295"]),
        ({"extra": {"llama.attention.head_count": 0}}, ["0 heads"]),
        ({"extra": {"llama.embedding_length": 128}}, ["rope.dimension_count"]),
        ({"extra": {"llama.feed_forward_length": 64}}, ["blk.0.ffn_gate.weight", "(64, 64)"]),
        ({"extra": {"llama.expert_count": 8}}, ["llama.expert_count is 8"]),
        ({"extra": {"split.count": 3}}, ["split.count is 3"]),
        ({"vocab": 100}, [f"{len(TOKENS)} tokens", "100 rows"]),
        ({"pre": "tekken"}, ["'tekken'", "smollm"]),
        ({"extra": {"tokenizer.ggml.model": "t5"}}, ["'t5'"]),
        ({"extra": {"tokenizer.ggml.eos_token_id": 9999}}, ["eos_token_id is 9999"]),
        ({"extra": {"tokenizer.ggml.tokens": ["a", "a"]}}, ["token types"]),
        ({"extra": {"tokenizer.ggml.tokens": [*TOKENS[:-1], "!"]}}, ["'!' appears twice"]),
        ({"extra": {"tokenizer.ggml.merges": ["zz qq"]}}, ["cannot be built", "zz"]),
        ({"extra": {"tokenizer.ggml.merges": ["zz"]}}, ["merge 'zz'"]),
        ({"kind": "F32", "scale": float("nan")}, ["token_embd.weight", "not finite"]),
    ],
)
def test_refusals_name_the_cause(tmp_path: Path, options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(LoadError) as caught:
        converted(tmp_path, **options)
    for part in ["tiny.gguf", *named]:
        assert part in str(caught.value)
    assert os.listdir(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize(
    "content", [b"", b"GG", b"GGUF", b"GGUF\3\0\0\0", b"hello, this is text", b"\0" * 100]
)
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"bad\.gguf"):
        convert(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["bad.gguf"]


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="directory"):
        convert(tmp_path, tmp_path / "out")
    with pytest.raises(LoadError, match=r"none\.gguf.*No such file"):
        convert(tmp_path / "none.gguf", tmp_path / "out")


def test_versions_and_big_endian_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    for version in (struct.pack("<I", 1), struct.pack("<I", 9), struct.pack(">I", 3)):
        path.write_bytes(b"GGUF" + version + b"\0" * 64)
        with pytest.raises(LoadError, match="version"):
            convert(path, tmp_path / "out")


def test_every_truncation_is_a_load_error(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source, kind="Q4_0")
    content = source.read_bytes()
    cut = tmp_path / "cut.gguf"
    lengths = [*range(400), *range(400, len(content), 997), len(content) - 64]
    for length in lengths:
        cut.write_bytes(content[:length])
        with pytest.raises(LoadError, match=r"cut\.gguf"):
            convert(cut, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["cut.gguf", "tiny.gguf"]


def test_damaged_headers_are_load_errors_or_harmless(tmp_path: Path) -> None:
    """Any byte of the header set to 255: lengths become huge, names and types unknown."""
    source = tmp_path / "tiny.gguf"
    write_gguf(source, kind="Q4_0")
    content = source.read_bytes()
    end = gguf_read.read_gguf(source).header_bytes
    refused = 0
    for at in [*range(700), *range(700, end, 61)]:
        source.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        try:
            gguf_read.read_gguf(source).texts("tokenizer.ggml.tokens")
        except LoadError:
            refused += 1
    assert refused > 300


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source, kind="Q4_0")
    content = source.read_bytes()
    rng = random.Random(11)
    ends = [2000, gguf_read.read_gguf(source).header_bytes, len(content)]
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(rng.choice(ends))] ^= 1 << rng.randrange(8)
        source.write_bytes(damaged)
        with contextlib.suppress(LoadError):
            convert(source, tmp_path / "out")
    left = set(os.listdir(tmp_path))
    assert left <= {"tiny.gguf", "out"}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_scale_that_is_not_finite(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source, kind=kind)
    at = gguf_read.read_gguf(source).header_bytes
    content = bytearray(source.read_bytes())
    for bad in (b"\xff\x7f", b"\x00\x7c"):  # NaN, infinity
        content[at : at + 2] = bad
        source.write_bytes(content)
        with pytest.raises(LoadError, match=r"token_embd\.weight holds values that are not finite"):
            convert(source, tmp_path / "out")


def test_without_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(LoadError, match=r"pip install mlxcel\[demo\]"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


TEXTS = [
    "hello 12345",
    "  two",
    "\n\nx\r\n y ",
    "日本 中文",
    "👩‍👧 🎉",
    "don't I'LL",
    "é½ ",
    "\tint  x;",
]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_round_trip(tmp_path: Path, pre: str) -> None:
    _, folder = converted(tmp_path, pre=pre)
    tokenizer = load_tokenizer(folder, eos_token_ids=config_of(folder)["eos_token_id"])
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        joined = text + "<|im_end|>" + text + "<think>"
        assert tokenizer.decode(tokenizer.encode(joined, add_special_tokens=False)) == joined
    assert tokenizer.encode("<|im_end|><think>", add_special_tokens=False) == [2, len(TOKENS) - 1]
    assert tokenizer.eos_token_ids == {0, 2}
    message = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(message, tokenize=False) == "<|im_start|>hello<|im_end|>"
    begins = tokenizer.encode("hello")[0] == 1
    assert begins == (pre == "llama-bpe")


def test_pre_tokenizers_split_digits_as_named(tmp_path: Path) -> None:
    pieces = {}
    for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2"):
        _, folder = converted(tmp_path, pre=pre)
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.encode("x 12", add_special_tokens=False)
        pieces[pre] = tokenizer.convert_ids_to_tokens(ids)
    assert pieces["smollm"] == pieces["qwen2"] == ["x", "Ġ", "1", "2"]
    assert pieces["gpt-2"] == pieces["llama-bpe"] == ["x", "Ġ", "12"]


@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_added_when_the_file_says_so(tmp_path: Path, add_bos: bool) -> None:
    _, folder = converted(tmp_path, extra={"tokenizer.ggml.add_bos_token": add_bos})
    assert (load_tokenizer(folder).encode("hello")[0] == 1) == add_bos


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    _, folder = converted(tmp_path, tokenizer="llama")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("abc ab")) == ["<s>", "▁abc", "▁ab"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("aé🎉")[2:4]) == ["a", "é"]
    for text in ("abc", "a  b", "é ü 日本 🎉\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


def test_cached_conversion_is_reused_and_repaired(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source)
    calls: list[tuple[str, int, int]] = []
    folder = convert_once(source, tmp_path / "cache", progress=lambda *a: calls.append(a))
    assert folder.parent == tmp_path / "cache" / "gguf"
    assert calls[-1][1] == calls[-1][2] > 0
    made = len(calls)
    assert convert_once(source, tmp_path / "cache", progress=lambda *a: calls.append(a)) == folder
    assert len(calls) == made
    manifest = folder / cache_folder.MANIFEST
    for damage in ("", "[]", manifest.read_text().replace('"converter": 1', '"converter": 0')):
        manifest.write_text(damage)
        assert convert_once(source, tmp_path / "cache") == folder
        assert json.loads(manifest.read_text())["converter"] == 1
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    convert_once(source, tmp_path / "cache")
    assert config_of(folder)["model_type"] == "llama"
    os.utime(source, ns=(1, 1))
    assert convert_once(source, tmp_path / "cache") != folder


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(LoadError, match="MLXCEL_CACHE_DIR"):
        convert_once(tmp_path / "tiny.gguf", tmp_path / "cache")


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """Run Python code in another process that sees the package under test."""
    env = {**os.environ, "PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


ONCE = """
import sys; from pathlib import Path; from mlxcel.runtime.gguf import convert, convert_once
source, cache, mode = map(Path, sys.argv[1:])
print(convert_once(source, cache) if mode.name == "once" else convert(source, cache / "gguf/x"))
"""


@pytest.mark.parametrize("mode", ["once", "direct"])
def test_two_processes_end_with_one_good_folder(tmp_path: Path, mode: str) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source)
    others = [start(ONCE, source, tmp_path / "cache", mode) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0]
    assert outputs[0] == outputs[1]
    folders = [p for p in (tmp_path / "cache" / "gguf").iterdir() if p.suffix != ".lock"]
    assert len(folders) == 1
    assert cache_folder.is_current(folders[0], gguf_read.source_digest(source))
    load_model(folders[0])


SLOW = """
import sys, time; from pathlib import Path; from mlxcel.runtime.gguf import convert
def wait(*_): print("began", flush=True); time.sleep(60)
convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=wait)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    source, folder = tmp_path / "tiny.gguf", tmp_path / "cache" / "x"
    write_gguf(source)
    process = start(SLOW, source, folder)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "began\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    assert not folder.exists()
    (left,) = folder.parent.iterdir()
    assert not (left / cache_folder.MANIFEST).exists()
    convert(source, folder)
    assert left.exists(), "a young folder may belong to a running process"
    os.utime(left, (time.time() - 2 * 86400,) * 2)
    convert(source, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["x"]
    load_model(folder)
