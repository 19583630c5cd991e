"""Text configs of Gemma 4, brought to the one spelling that mlx-lm reads.

A published config names ``global_head_dim`` and ``num_global_key_value_heads``. Since 5.24
transformers writes ``per_layer_config`` instead, one entry per layer that differs, and it leaves
out what has its default. mlx-lm knows the first spelling only and has other defaults, some of
them of another size of model, so every field is made explicit before it sees one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxcel.errors import LoadError

__all__ = ["GEMMA4_TYPES", "complete_config", "complete_text_config"]

GEMMA4_TYPES = ("gemma4", "gemma4_text", "gemma4_unified")
"""Model types of targets, as mlx-lm knows them."""

# transformers 5.24, Gemma4TextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
}
# Gemma4UnifiedTextConfig has no embeddings per layer and no experts.
_UNIFIED = {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "vocab_size_per_layer_input": 0,
    "hidden_size_per_layer_input": 0,
}
_ROPE = {
    "full_attention": {
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
        "rope_type": "proportional",
    },
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
_GLOBAL_HEAD_DIM = 512
_PATTERN = 6  # every sixth layer is a full one, and so is the last
_OVERRIDES = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}


def complete_text_config(text: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Make every field of a text config explicit, in the spelling of mlx-lm.

    Parameters
    ----------
    text : mapping
        ``text_config``, or the whole config of a text-only checkpoint; either spelling.
    where : str
        File, for the message.

    Returns
    -------
    dict
        A new config; fields that are not known here are kept.

    Raises
    ------
    LoadError
        ``per_layer_config`` says something that mlx-lm's model cannot be.
    """
    unified = str(text.get("model_type", "")).startswith("gemma4_unified")
    full = _DEFAULTS | (_UNIFIED if unified else {}) | dict(text)
    if full["hidden_size_per_layer_input"] is None:
        full["hidden_size_per_layer_input"] = 0
    if full.get("layer_types") is None:
        full["layer_types"] = _layer_types(int(full["num_hidden_layers"]))
    if full.get("rope_parameters") is None:
        full["rope_parameters"] = _ROPE
    per_layer = full.pop("per_layer_config", None)
    if per_layer:
        full |= _global_fields(full, per_layer, where)
    elif full.get("global_head_dim") is None:
        full["global_head_dim"] = _GLOBAL_HEAD_DIM
    full.setdefault("num_global_key_value_heads", None)
    return full


def complete_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same for the whole ``config.json`` of a target; another kind of model is left alone.

    Parameters
    ----------
    config : mapping
        ``config.json``.
    where : str
        File, for the message.

    Returns
    -------
    dict
        The fields that mlx-lm has to be told; empty for a model that is not a Gemma 4.
    """
    if config.get("model_type") not in GEMMA4_TYPES:
        return {}
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return complete_text_config(config, where)
    full = complete_text_config(text, where)
    # mlx-lm's outer config has a vocabulary of its own, which wins over the inner one.
    return {"text_config": full, "vocab_size": full["vocab_size"]}


def _layer_types(layers: int) -> list[str]:
    kinds = [
        "sliding_attention" if (at + 1) % _PATTERN else "full_attention" for at in range(layers)
    ]
    return [*kinds[:-1], "full_attention"]


def _global_fields(full: Mapping[str, Any], per_layer: Any, where: str) -> dict[str, Any]:
    """Fields of the full layers, out of overrides by layer."""
    base = {name: full[name] for name in _OVERRIDES}
    overrides = {int(at): dict(fields) for at, fields in dict(per_layer).items()}
    seen: dict[str, dict[str, Any]] = {"sliding_attention": base}
    for at, kind in enumerate(full["layer_types"]):
        mine = base | overrides.get(at, {})
        if mine.keys() - base.keys():
            names = ", ".join(sorted(mine.keys() - base.keys()))
            raise LoadError(
                f"{where}: per_layer_config overrides {names} of layer {at}; only "
                f"{' and '.join(base)} can differ by layer"
            )
        alike = seen.setdefault(kind, mine)
        if mine != alike:
            raise LoadError(
                f"{where}: per_layer_config gives the {kind} layer {at} {mine}, but other layers "
                f"of that kind have {alike}; they must be alike"
            )
    found = seen.get("full_attention", base)
    if not full["attention_k_eq_v"] and found["num_key_value_heads"] != base["num_key_value_heads"]:
        raise LoadError(
            f"{where}: full layers have {found['num_key_value_heads']} key heads, sliding ones "
            f"{base['num_key_value_heads']}; that needs attention_k_eq_v"
        )
    return {_OVERRIDES[name]: value for name, value in found.items()}
