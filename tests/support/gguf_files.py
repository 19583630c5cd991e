"""Tiny GGUF files of every kind: random weights, a byte-level or a SentencePiece vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
HEAD_DIM = HIDDEN // HEADS
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_letters() -> list[str]:
    """GPT-2's 256 printable letters for the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]


TOKENS = [*CONTROL, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES), "<think>"]
TYPES = [3] * len(CONTROL) + [1] * (256 + len(MERGES)) + [4]
SPM_PIECES = ["▁", "a", "b", "ab", "▁ab", "c", "abc", "▁abc", "é"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *SPM_PIECES]
SPM_TYPES = [2, 3, 3, *[6] * 256, *[1] * len(SPM_PIECES)]
SPM_SCORES = [0.0] * 259 + [-9.0, -9.0, -9.0, -1.0, -2.0, -9.0, -3.0, -4.0, -9.0]


def shapes(vocab: int, *, arch: str = "llama", tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Every tensor of the tiny model."""
    kv = KV_HEADS * HEAD_DIM
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, HIDDEN)}
    for i in range(LAYERS):
        found |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k.weight": (kv, HIDDEN),
            f"blk.{i}.attn_v.weight": (kv, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INNER),
        }
        if arch == "qwen2":
            found |= {
                f"blk.{i}.attn_q.bias": (HIDDEN,),
                f"blk.{i}.attn_k.bias": (kv,),
                f"blk.{i}.attn_v.bias": (kv,),
            }
    found["output_norm.weight"] = (HIDDEN,)
    if not tied:
        found["output.weight"] = (vocab, HIDDEN)
    return found


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    kind: str | Callable[[str], str] = "Q8_0",
    tied: bool = True,
    vocab: int | None = None,
    tokenizer: str = "gpt2",
    pre: str = "smollm",
    scale: float = 0.05,
    extra: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a tiny model; gives the float32 arrays before quantization.

    ``extra`` adds or replaces metadata, ``drop`` leaves out keys or tensors by name, ``tensors``
    adds or replaces float arrays.
    """
    tokens = TOKENS if tokenizer == "gpt2" else SPM_TOKENS
    rng = np.random.default_rng(7)
    arrays = {
        name: rng.normal(0, scale, shape).astype(np.float32)
        for name, shape in shapes(vocab or len(tokens), arch=arch, tied=tied).items()
    }
    arrays |= dict(tensors or {})
    writer = GGUFWriter(path, arch)
    for key, value in (_metadata(arch, tokenizer, pre) | dict(extra or {})).items():
        if key not in drop:
            _add(writer, key, value)
    for name, array in arrays.items():
        if name not in drop:
            its = "F32" if array.ndim == 1 else kind if isinstance(kind, str) else kind(name)
            dtype = GGMLQuantizationType[its]
            data = array if its == "F32" else quantize(array, dtype)
            writer.add_tensor(name, data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def _metadata(arch: str, tokenizer: str, pre: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": INNER,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": tokenizer,
    }
    if tokenizer == "gpt2":
        return found | {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": TYPES,
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.chat_template": TEMPLATE,
        }
    return found | {
        "tokenizer.ggml.tokens": SPM_TOKENS,
        "tokenizer.ggml.token_type": SPM_TYPES,
        "tokenizer.ggml.scores": SPM_SCORES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
