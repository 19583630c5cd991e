"""Tiny checkpoint folders in the layout that mlx-lm writes, with a byte-level tokenizer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.support import tiny
from tests.support.gguf_files import byte_letters

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("a", "b")]
SPECIAL = ["<|end|>", "<|turn|>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'nobody' %}{{ raise_exception('no such role') }}"
    "{% endif %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>{% endif %}"
)
# What mlx-lm knows the form of calls by stands in a comment: it reads the text of the template.
TOOLS = (
    "{# <tool_call> tool_call.name #}"
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}"
)
GROUP = 32
# What tiny.gemma4_model has otherwise than the published defaults.
GEMMA4_FIELDS = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "head_dim", "vocab_size", "num_key_value_heads", "hidden_size_per_layer_input",
    "sliding_window", "layer_types", "max_position_embeddings", "final_logit_softcapping",
    "num_kv_shared_layers", "vocab_size_per_layer_input",
)


def vocabulary(*, permute: bool = False, drop: int = 0) -> dict[str, int]:
    """Token texts and their ids: two special ones, 256 bytes, then the merges."""
    texts = [*SPECIAL, *byte_letters(), *("".join(pair) for pair in MERGES)]
    if drop:
        texts = texts[:-drop]
    if permute:
        texts[10], texts[11] = texts[11], texts[10]
    return {text: token for token, text in enumerate(texts)}


def write_tiny(folder: Path, model: Any) -> Path:
    """Write a model of `tests.support.tiny` that was made with as many ids as `vocabulary`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = asdict(model.args) | {"eos_token_id": vocabulary()[SPECIAL[0]]}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, vocabulary(), TEMPLATE)
    return folder


def write_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    vocab_extra: int = 0,
    permute: bool = False,
    bits: int | None = None,
    template: bool = True,
    tools: bool = False,
    layers: int = 2,
    context: int = 4096,
) -> Path:
    """Write a random llama of a few layers.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    seed : int
        Of the weights.
    vocab_extra : int
        Padding rows of the embedding that no token has; a negative number leaves out so
        many of the last tokens instead.
    permute : bool
        Swap the ids of two tokens.
    bits : int, optional
        Quantize to so many bits, affine, groups of 32.
    template : bool
        Whether there is a chat template.
    tools : bool
        Whether it names tools, in a form of calls that mlx-lm knows.
    layers : int
        How many.
    context : int
        Positions that it claims to be made for.

    Returns
    -------
    Path
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab = vocabulary(permute=permute, drop=max(-vocab_extra, 0))
    rows = len(vocab) + max(vocab_extra, 0)
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": rows,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": vocab[SPECIAL[0]],
    }
    model = tiny.llama_model(seed=seed, vocab=rows, layers=layers)
    if bits is not None:
        nn.quantize(model, group_size=GROUP, bits=bits)
        config["quantization"] = {"group_size": GROUP, "bits": bits}
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, vocab, (TOOLS if tools else "") + TEMPLATE if template else None)
    return folder


def write_tiny_gemma4(
    folder: Path,
    *,
    seed: int = 0,
    bits: int | None = None,
    spelling: str = "global",
    shared: int = 0,
    unified: bool = False,
) -> Path:
    """Write a random Gemma 4 of six layers, in the layout of the published ones.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    seed : int
        Of the weights.
    bits : int, optional
        Quantize to so many bits, affine, groups of 32, with the names of MLX conversions.
    spelling : {"global", "per_layer"}
        How the config says that full layers differ.
    shared : int
        Last layers that have no keys of their own; then there are embeddings per layer too.
    unified : bool
        Whether it is of the kind that reads images and sound without an encoder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab = vocabulary()
    model = tiny.gemma4_model(seed=seed, shared=shared, vocab=len(vocab))
    args = model.args
    kind = "gemma4_unified" if unified else "gemma4"
    text = {name: getattr(args, name) for name in GEMMA4_FIELDS} | {"model_type": f"{kind}_text"}
    if spelling == "per_layer":
        full = [at for at, kind in enumerate(args.layer_types) if kind == "full_attention"]
        text["per_layer_config"] = {str(at): {"head_dim": args.global_head_dim} for at in full}
    else:
        text["global_head_dim"] = args.global_head_dim
    config = {
        "model_type": kind,
        "text_config": text,
        "eos_token_id": vocab[SPECIAL[0]],
    }
    prefix, inner = "model.language_model.", "model."
    if bits is not None:
        nn.quantize(model, group_size=GROUP, bits=bits)
        config["quantization"] = {"group_size": GROUP, "bits": bits}
        prefix, inner = "language_model.model.", "model."
    weights = {
        prefix + name.removeprefix(inner): value
        for name, value in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, vocab, TEMPLATE)
    return folder


def write_tokenizer(folder: Path, vocab: dict[str, int], template: str | None) -> None:
    """Write a byte-level tokenizer with these tokens."""
    merges = [pair for pair in MERGES if "".join(pair) in vocab]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
