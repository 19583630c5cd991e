"""Tiny random Gemma 4 assistants, and drafts computed without slot caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant, Source, build_assistant
from mlxcel.models.target import Target
from tests.support import tiny

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = [SLIDING, SLIDING, SLIDING, FULL]
ROPE = {
    FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
    SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
}


def assistant_config(
    *,
    ordered: bool = False,
    window: int = tiny.WINDOW,
    unified: bool = False,
    text: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """``config.json`` of an assistant of ``tiny.gemma4_model``."""
    kind = "gemma4_unified" if unified else "gemma4"
    inner = {
        "model_type": f"{kind}_text", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": len(KINDS), "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "global_head_dim": 32, "vocab_size": tiny.VOCAB, "rms_norm_eps": 1e-6,
        "sliding_window": window, "layer_types": KINDS, "num_kv_shared_layers": len(KINDS),
        "max_position_embeddings": 4096, "rope_parameters": ROPE,
    }  # fmt: skip
    if not unified:
        inner |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    return {
        "model_type": f"{kind}_assistant", "backbone_hidden_size": 64,
        "use_ordered_embeddings": ordered, "num_centroids": 8, "centroid_intermediate_top_k": 3,
        "tie_word_embeddings": True, "text_config": inner | (text or {}), **more,
    }  # fmt: skip


def tiny_assistant(
    target: Target, *, seed: int = 3, scale: float = 0.2, **config: Any
) -> Gemma4Assistant:
    """An assistant whose weights are all random: norms, scalars and the order of ids too."""
    assistant = build_assistant(assistant_config(**config), target, "config.json")
    flat = tree_flatten(assistant.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))

    def random(name: str, value: mx.array, key: mx.array) -> mx.array:
        if name.endswith("token_ordering"):
            return mx.random.permutation(value.shape[0], key=key).astype(mx.uint32)
        noise = mx.random.normal(value.shape, key=key)
        return noise * scale if value.ndim > 1 else 1 + 0.2 * noise

    pairs = zip(flat, keys, strict=True)
    made = [(name, random(name, value, key)) for (name, value), key in pairs]
    assistant.update(tree_unflatten(made))
    assistant.eval()
    mx.eval(assistant.parameters())
    return assistant


def write_assistant(
    folder: Path, assistant: Gemma4Assistant, config: dict[str, Any], **more: mx.array
) -> Path:
    """Write a folder in the published layout; ``more`` tensors replace or join those."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(tree_flatten(assistant.parameters())) | more
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def plain_sources(
    target: Target, assistant: Gemma4Assistant, tokens: list[int], window: int | None = None
) -> tuple[dict[str, Source], mx.array]:
    """Keys and values by mlx-lm's own caches, one pass; with the last hidden state."""
    caches = make_prompt_cache(target.model)
    hidden = target.body(mx.array([tokens], mx.uint32), cache=caches)
    sources = {}
    for kind, at in assistant.sources:
        seen = len(tokens) if kind == FULL else min(window or assistant.window, len(tokens))
        held = caches[at].keys, caches[at].values
        # One pass leaves a rotating cache in the order of time.
        end = len(tokens)
        keys, values = (each[:, :, end - seen : end] for each in held)
        sources[kind] = Source(keys, values, None)
    return sources, hidden[:, -1:]


def plain_drafts(
    target: Target,
    assistant: Gemma4Assistant,
    text: list[int],
    length: int,
    count: int,
    *,
    window: int | None = None,
    late: int = 0,
) -> list[int]:
    """Greedy drafts after ``length`` cached tokens, from nothing but the text."""
    sources, state = plain_sources(target, assistant, text[:length], window)
    token, found = text[length], []
    for _ in range(count):
        hidden = assistant.step(mx.array([[token]], mx.uint32), state, sources, length + late)
        logits, ids = assistant.logits(hidden)
        best = mx.argmax(logits[0, 0])
        token = int((best if ids is None else ids[0, 0, best]).item())
        found.append(token)
        state = assistant.project(hidden)
    return found
