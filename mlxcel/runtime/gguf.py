"""GGUF checkpoints in MLX form, exactly: every weight keeps the value the file gives it.

``F32`` and ``F16`` stay as they are; ``Q4_0``, ``Q4_1`` and ``Q8_0`` become MLX affine
weights of group 32 whose scales and biases are the file's own numbers. Anything that
has no exact form is refused by name before a file is written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxcel.errors import LoadError
from mlxcel.runtime.cache_folder import Progress, build, is_current, locked
from mlxcel.runtime.gguf_read import GgufFile, TensorInfo, read_gguf, source_digest
from mlxcel.runtime.gguf_tokenizer import Vocabulary, read_vocabulary, write_tokenizer
from mlxcel.runtime.gguf_weights import BITS, GROUP, Place, write_weights

__all__ = ["convert", "convert_once"]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of the network, from the metadata."""

    arch: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def convert_once(path: Path, cache_dir: Path, *, progress: Progress | None = None) -> Path:
    """Folder of the converted file in the cache, converting it if it is not there yet.

    Parameters
    ----------
    path : Path
        The GGUF file.
    cache_dir : Path
        The conversion is kept in its folder ``gguf``, under a name that changes with the
        file's header, size and modification time.
    progress : callable, optional
        As for `convert`.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    LoadError
        As for `convert`.
    """
    source = source_digest(path)
    final = cache_dir / "gguf" / f"{path.stem}-{source[:16]}"
    if not is_current(final, source):
        with locked(final, progress):
            if not is_current(final, source):
                convert(path, final, source=source, progress=progress)
    return final


def convert(
    path: Path,
    out_dir: Path,
    *,
    source: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Convert a GGUF file to a folder that mlx-lm loads, with the same weight values.

    Parameters
    ----------
    path : Path
        The GGUF file, of architecture llama or qwen2.
    out_dir : Path
        Appears when everything is written, and replaces what was there.
    source : str, optional
        Digest for the manifest; by default that of the file.
    progress : callable, optional
        Called with a label, the bytes of tensor data done and their total.

    Raises
    ------
    LoadError
        The file is broken or has no exact MLX form (nothing is written then), or the
        folder cannot be written.
    """
    file = read_gguf(path)
    words = read_vocabulary(file)
    shape = _read_shape(file, words)
    weights = _match(file, shape)
    config = _config(file, shape, words, weights)
    with build(out_dir, source or source_digest(path)) as folder:
        write_tokenizer(file, words, folder)
        write_weights(file, weights, folder, progress)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / "config.json").write_text(text, encoding="utf-8")


def _read_shape(file: GgufFile, words: Vocabulary) -> _Shape:
    """Sizes of the network; refuses variants that the target architecture does not compute."""
    arch = file.text("general.architecture")
    if arch not in ("llama", "qwen2"):
        raise LoadError(
            f"{file.path}: architecture {arch!r} is not supported from GGUF; llama and qwen2 are; "
            "take the model in Hugging Face or MLX form instead"
        )
    heads = file.integer(f"{arch}.attention.head_count")
    hidden = file.integer(f"{arch}.embedding_length")
    if heads < 1 or hidden < 1:
        raise LoadError(f"{file.path}: {heads} heads and embedding length {hidden} make no model")
    head_dim = file.integer(f"{arch}.attention.key_length", hidden // heads)
    layers = file.integer(f"{arch}.block_count")
    if head_dim % 2 or layers > len(file.tensors):
        raise LoadError(
            f"{file.path}: {layers} layers with heads of {head_dim} do not match its "
            f"{len(file.tensors)} tensors"
        )
    _refuse_variants(file, arch, hidden // heads if arch == "qwen2" else head_dim)
    embedding = next((t for t in file.tensors if t.name == "token_embd.weight"), None)
    vocab = embedding.shape[0] if embedding else 0
    if embedding and len(words.tokens) > vocab:
        raise LoadError(
            f"{file.path}: the vocabulary has {len(words.tokens)} tokens, token_embd.weight only "
            f"{vocab} rows"
        )
    return _Shape(
        arch=arch,
        layers=layers,
        hidden=hidden,
        inner=file.integer(f"{arch}.feed_forward_length"),
        heads=heads,
        kv_heads=file.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=vocab,
    )


def _refuse_variants(file: GgufFile, arch: str, head_dim: int) -> None:
    """Refuse settings that change what the network computes and that mlx-lm would not see."""
    wanted = {
        f"{arch}.attention.key_length": (head_dim,),
        f"{arch}.attention.value_length": (head_dim,),
        f"{arch}.rope.dimension_count": (head_dim,),
        f"{arch}.expert_count": (0,),
        f"{arch}.attention.sliding_window": (0,),
        "split.count": (1, 0),
    }
    for key, allowed in wanted.items():
        value = file.integer(key, allowed[0])
        if value not in allowed:
            raise LoadError(
                f"{file.path}: {key} is {value}; only {allowed[0]} is supported from GGUF"
            )


def _expected(shape: _Shape) -> dict[str, Place]:
    """Every tensor that the architecture needs, by GGUF name."""
    q, kv, hidden, inner = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
        shape.hidden,
        shape.inner,
    )
    sizes = {
        "attn_norm": (hidden,),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    # The llama exporter interleaves the two halves of each rotary head; qwen2's does not.
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads} if shape.arch == "llama" else {}
    found = {
        "token_embd.weight": Place("model.embed_tokens", "weight", (shape.vocab, hidden)),
        "output_norm.weight": Place("model.norm", "weight", (hidden,)),
    }
    for layer in range(shape.layers):
        for name, size in sizes.items():
            path = f"model.layers.{layer}.{_LAYER_NAMES[name]}"
            key = f"blk.{layer}.{name}"
            found[f"{key}.weight"] = Place(path, "weight", size, heads.get(name, 0))
            if shape.arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                found[f"{key}.bias"] = Place(path, "bias", size[:1])
    return found


def _match(file: GgufFile, shape: _Shape) -> list[tuple[TensorInfo, Place]]:
    """Pair the file's tensors with their places; none may be missing, odd or left over."""
    expected = _expected(shape)
    optional = {"output.weight": Place("lm_head", "weight", (shape.vocab, shape.hidden))}
    present = {tensor.name: tensor for tensor in file.tensors}
    missing = next((name for name in expected if name not in present), None)
    if missing:
        raise LoadError(f"{file.path}: tensor {missing} is missing")
    found = []
    for tensor in file.tensors:
        weight = expected.get(tensor.name) or optional.get(tensor.name)
        if weight is None:
            if tensor.name == _ROPE_FREQS:
                continue
            raise LoadError(
                f"{file.path}: tensor {tensor.name} has no place in a {shape.arch} model"
            )
        if tensor.shape != weight.shape:
            raise LoadError(
                f"{file.path}: tensor {tensor.name} has shape {tensor.shape}, the metadata "
                f"says {weight.shape}"
            )
        if len(tensor.shape) == 1 and tensor.type in BITS:
            raise LoadError(f"{file.path}: tensor {tensor.name} has type {tensor.type}, not F32")
        found.append((tensor, weight))
    return found


def _config(
    file: GgufFile,
    shape: _Shape,
    words: Vocabulary,
    weights: Iterable[tuple[TensorInfo, Place]],
) -> dict[str, Any]:
    """Contents of ``config.json``."""
    arch = shape.arch
    types = {weight.path: tensor.type for tensor, weight in weights if len(tensor.shape) == 2}
    exact = all(kind == "F32" for kind in types.values())
    config: dict[str, Any] = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[arch]],
        "model_type": arch,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": file.integer(f"{arch}.context_length"),
        "rms_norm_eps": file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number(f"{arch}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, shape),
        "tie_word_embeddings": "lm_head" not in types,
        "torch_dtype": "float32" if exact else "float16",
    }
    if "bos" in words.special:
        config["bos_token_id"] = words.special["bos"]
    if words.stops:
        config["eos_token_id"] = words.stops[0] if len(words.stops) == 1 else words.stops
    quantization = _quantization(types)
    if quantization:
        config["quantization"] = quantization
    return config


def _quantization(types: dict[str, str]) -> dict[str, Any]:
    """mlx-lm's description: the commonest width, then every module that differs from it."""
    counts = Counter(BITS[kind] for kind in types.values() if kind in BITS)
    if not counts:
        return {}
    bits = counts.most_common(1)[0][0]
    found: dict[str, Any] = {"group_size": GROUP, "bits": bits, "mode": "affine"}
    for path, kind in types.items():
        if kind not in BITS:
            found[path] = False
        elif BITS[kind] != bits:
            found[path] = {"group_size": GROUP, "bits": BITS[kind], "mode": "affine"}
    return found


def _rope_scaling(file: GgufFile, shape: _Shape) -> dict[str, Any] | None:
    """Rope scaling in Hugging Face words, or None; kinds without an exact form are refused."""
    arch = shape.arch
    if any(tensor.name == _ROPE_FREQS for tensor in file.tensors):
        return _llama3_scaling(file, shape)
    kind = file.text(f"{arch}.rope.scaling.type", "none")
    factor = file.number(f"{arch}.rope.scaling.factor", 0.0)
    if file.has(f"{arch}.rope.scale_linear"):
        kind, factor = "linear", file.number(f"{arch}.rope.scale_linear")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind != "linear":
        raise LoadError(f"{file.path}: rope scaling {kind!r} is not supported from GGUF")
    return {"rope_type": "linear", "factor": factor}


def _llama3_scaling(file: GgufFile, shape: _Shape) -> dict[str, Any]:
    """Find the Llama 3 parameters that give the frequency factors stored in the file."""
    stored = np.asarray(file.data(_ROPE_FREQS), dtype=np.float64)
    base = file.number(f"{shape.arch}.rope.freq_base", 10000.0)
    length = 2 * np.pi * base ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
    low, high, old = 1.0, 4.0, 8192
    smooth = (old / length - low) / (high - low)
    for factor in (8.0, 32.0):
        medium = 1 / ((1 - smooth) / factor + smooth)
        factors = np.where(length > old / low, factor, np.where(length < old / high, 1.0, medium))
        if stored.shape == factors.shape and np.allclose(stored, factors, rtol=1e-5):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": old,
            }
    raise LoadError(
        f"{file.path}: {_ROPE_FREQS} is not the scaling of Llama 3.1 or 3.2, and other frequency "
        "factors are not supported from GGUF"
    )
