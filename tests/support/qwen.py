"""Tiny Qwen checkpoints with a multi-token-prediction head, as published and as converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.models.target import Target
from tests.support import tiny
from tests.support.checkpoints import GROUP, SPECIAL, TEMPLATE, vocabulary, write_tokenizer

KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
Tensors = dict[str, mx.array]
# Stored as what is to be added to one; the gated norm of recurrent layers is not.
SHIFTED = (
    "input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight",
    "k_norm.weight", "model.norm.weight",
)  # fmt: skip


def tiny_qwen(kind: str, seed: int = 0, vocab: int = tiny.VOCAB) -> Any:
    """The model, by ``model_type``."""
    if kind == "qwen3_next":
        return tiny.qwen3_next_model(seed, vocab=vocab)
    return tiny.qwen35_model(seed, experts=kind == "qwen3_5_moe", vocab=vocab)


def tiny_head(target: Target, seed: int = 5) -> MTPHead:
    """A head whose weights are all random; the norms before ``fc`` are as small as published."""
    head = MTPHead(target)
    flat = tree_flatten(head.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))

    def random(name: str, value: mx.array, key: mx.array) -> mx.array:
        noise = mx.random.normal(value.shape, key=key)
        if value.ndim > 1:
            return noise * 0.2
        return (0.4 if name.startswith("pre_fc") else 1.0) + 0.1 * noise

    made = [(name, random(name, v, key)) for (name, v), key in zip(flat, keys, strict=True)]
    head.update(tree_unflatten(made))
    head.eval()
    mx.eval(head.parameters())
    return head


def config_of(kind: str, vocab: int) -> dict[str, Any]:
    """``config.json`` of a model."""
    if kind == "qwen3_next":
        return tiny.qwen3_next_config(vocab=vocab) | {"eos_token_id": 0}
    text = tiny.qwen35_text(experts=kind == "qwen3_5_moe", vocab=vocab)
    return {"model_type": kind, "text_config": text | {"mtp_num_hidden_layers": 1}}


def published(kind: str, model: Any, head: MTPHead | None) -> Tensors:
    """Tensors with the names, forms and norms of the original checkpoints."""
    found: Tensors = {}
    for name, value in tree_flatten(model.parameters()):
        name = name.replace("language_model.model.", "model.language_model.")
        if name.endswith("conv1d.weight"):
            value = value.moveaxis(2, 1)
        elif name.endswith((*SHIFTED, "language_model.norm.weight")):
            value = value - 1
        found[name] = value
    for name, value in tree_flatten(head.parameters()) if head is not None else ():
        found[f"mtp.{name}"] = value - 1 if value.ndim == 1 else value
    return _split(found) if kind == "qwen3_next" else _fused(found)


def _fused(tensors: Tensors) -> Tensors:
    """Experts as Qwen 3.5 has them: gate and up projections of all in one tensor."""
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith("switch_mlp.gate_proj.weight")]:
        start = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (
            found.pop(f"{start}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        found[f"{start}experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        found[f"{start}experts.down_proj"] = down
    return found


def _split(tensors: Tensors) -> Tensors:
    """Experts as Qwen3-Next has them: each by itself."""
    found: Tensors = {}
    for name, value in tensors.items():
        if ".switch_mlp." not in name:
            found[name] = value
            continue
        for expert in range(value.shape[0]):
            found[name.replace("switch_mlp", f"experts.{expert}")] = value[expert]
    return found


def converted(kind: str, model: Any, head: MTPHead | None) -> Tensors:
    """Tensors as an MLX conversion that keeps the head has them."""
    found = dict(tree_flatten(model.parameters()))
    prefix = "mtp." if kind == "qwen3_next" else "language_model.mtp."
    for name, value in tree_flatten(head.parameters()) if head is not None else ():
        found[prefix + name] = value
    return found


def write_qwen(
    folder: Path,
    kind: str = "qwen3_5",
    *,
    form: str = "published",
    bits: int | None = None,
    keep: bool = True,
    seed: int = 0,
) -> tuple[Path, Tensors]:
    """Write a checkpoint with its head.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    kind : str
        ``model_type``.
    form : {"published", "converted"}
        Names, forms and norms.
    bits : int, optional
        Quantize model and head, affine, groups of 32.
    keep : bool
        Whether the head is there.
    seed : int
        Of the weights.

    Returns
    -------
    Path
        The folder.
    dict
        The head's own tensors, by the names of `MTPHead`.
    """
    vocab = len(vocabulary())
    model = tiny_qwen(kind, seed, vocab)
    head = tiny_head(Target(tiny_qwen(kind, seed, vocab), {}))
    config = config_of(kind, vocab) | {"eos_token_id": vocabulary()[SPECIAL[0]]}
    if bits is not None:
        for each in (model, head):
            nn.quantize(each, group_size=GROUP, bits=bits)
        config["quantization"] = {"group_size": GROUP, "bits": bits}
    make = published if form == "published" else converted
    write_folder(folder, config, make(kind, model, head if keep else None), form)
    write_tokenizer(folder, vocabulary(), TEMPLATE)
    return folder, dict(tree_flatten(head.parameters()))


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors, form: str = "") -> Path:
    """Write config and weights in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "mlx" if form == "converted" else "pt"
    file = str(folder / "model.safetensors")
    mx.save_safetensors(file, tensors, metadata={"format": kind})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
