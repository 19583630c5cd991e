"""Tiny geometries in the form of the published ones: every architecture in a few kilobytes."""

from __future__ import annotations

import copy
from typing import Any

from mlxcel.runtime.geometry import Geometry, parse_geometry

_GEMMA = {
    "model_type": "gemma4_text", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
    "attention_k_eq_v": True, "sliding_window": 24, "sliding_window_pattern": 2,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False, "enable_moe_block": False, "tie_word_embeddings": True,
    "max_position_embeddings": 4096, "vocab_size_per_layer_input": 96,
}  # fmt: skip
_EXPERTS = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
}  # fmt: skip
_ASSISTANT = _GEMMA | {
    "hidden_size": 32, "intermediate_size": 64, "num_kv_shared_layers": 4,
    "sliding_window_pattern": 4,
}  # fmt: skip
_QWEN = {
    "model_type": "qwen3_5", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
}  # fmt: skip
_QWEN_EXPERTS = {
    "model_type": "qwen3_5_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip


def _entry(config: dict[str, Any], kind: str, drafter: dict[str, Any]) -> dict[str, Any]:
    return {
        "checkpoint": "tiny", "batch_capable": True, "source": "made for tests",
        "quantization": {"bits": 4, "group_size": 32}, "config": config,
        "drafter": {
            "kind": kind, "checkpoint": "tiny-drafter", "config": drafter,
            "quantization": {"bits": 4, "group_size": 32, "embeddings": False},
        },
    }  # fmt: skip


GEOMETRIES: dict[str, dict[str, Any]] = {
    "tiny-gemma4": _entry(_GEMMA, "gemma4_assistant", _ASSISTANT),
    "tiny-gemma4-moe": _entry(_GEMMA | _EXPERTS, "gemma4_assistant", _ASSISTANT),
    "tiny-qwen3_5": _entry(_QWEN, "qwen3_5_mtp", {}),
    "tiny-qwen3_5-moe": _entry(_QWEN | _QWEN_EXPERTS, "qwen3_5_mtp", {}),
}


def tiny_geometry(name: str) -> dict[str, Any]:
    """A copy that a test may change."""
    return copy.deepcopy(GEOMETRIES[name])


def tiny(name: str) -> Geometry:
    """The geometry itself."""
    return parse_geometry(name, tiny_geometry(name))
