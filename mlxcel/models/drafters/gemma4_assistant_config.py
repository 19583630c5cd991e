"""What a Gemma 4 assistant's config says, and whether it fits a target. No weight is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlx_lm.models import gemma4_text

from mlxcel.errors import LoadError
from mlxcel.models.gemma4_config import complete_text_config

__all__ = ["ASSISTANT_TYPES", "AssistantConfig", "check_pair", "read_assistant", "source_layers"]

ASSISTANT_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
"""The second drafts for the 12B; its config differs in defaults only."""

KINDS = ("sliding_attention", "full_attention")

# Published configs say so; transformers refuses any other value.
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_size_per_layer_input": (0,),
    "enable_moe_block": (False,),
    "use_double_wide_mlp": (False,),
    "hidden_activation": ("gelu_pytorch_tanh",),
}


@dataclass(frozen=True, slots=True)
class AssistantConfig:
    """An assistant as its config describes it.

    Attributes
    ----------
    args : ModelArgs
        mlx-lm's, of the assistant's own layers, all of which read shared keys and values.
    backbone_hidden_size : int
        Hidden size of the target it was trained with.
    centroids : int
        Clusters of the ordered head; 0 for the dense one.
    top_k : int
        Clusters whose tokens are scored.
    """

    args: gemma4_text.ModelArgs
    backbone_hidden_size: int
    centroids: int
    top_k: int


def read_assistant(config: Mapping[str, Any], where: str) -> AssistantConfig:
    """Read ``config.json`` of an assistant.

    Parameters
    ----------
    config : mapping
        The whole file.
    where : str
        Its path, for messages.

    Raises
    ------
    LoadError
        A field is missing or has a value that no assistant has.
    """
    kind = config.get("model_type")
    if kind not in ASSISTANT_TYPES:
        raise LoadError(f"{where}: model_type must be {' or '.join(ASSISTANT_TYPES)}, got {kind!r}")
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise LoadError(f"{where}: text_config is missing; it describes the assistant's layers")
    full = complete_text_config(text, where)
    full.setdefault("hidden_activation", "gelu_pytorch_tanh")
    layers = _whole(full, "num_hidden_layers", where)
    for name, allowed in {**_FIXED, "num_kv_shared_layers": (layers, 0)}.items():
        if full[name] not in allowed:
            raise LoadError(
                f"{where}: text_config.{name} must be {allowed[0]!r} in an assistant, got "
                f"{full[name]!r}"
            )
    kinds = full["layer_types"]
    if len(kinds) != layers or not set(kinds) <= set(KINDS):
        raise LoadError(
            f"{where}: layer_types must name {' or '.join(KINDS)} for each of {layers} layers, "
            f"got {kinds!r}"
        )
    if not config.get("tie_word_embeddings", True):
        raise LoadError(f"{where}: tie_word_embeddings is false; only tied heads are known")
    full["num_kv_shared_layers"] = layers  # published configs may have 0 and mean all
    centroids, top_k = _ordered_head(config, full, where)
    return AssistantConfig(
        args=gemma4_text.ModelArgs.from_dict(full),
        backbone_hidden_size=_whole(config, "backbone_hidden_size", where),
        centroids=centroids,
        top_k=top_k,
    )


def _ordered_head(
    config: Mapping[str, Any], text: Mapping[str, Any], where: str
) -> tuple[int, int]:
    if not config.get("use_ordered_embeddings", False):
        return 0, 0
    named = {"num_centroids": 2048, "centroid_intermediate_top_k": 32} | dict(config)
    centroids = _whole(named, "num_centroids", where)
    top_k = _whole(named, "centroid_intermediate_top_k", where)
    vocab = _whole(text, "vocab_size", where)
    if vocab % centroids:
        raise LoadError(
            f"{where}: vocab_size {vocab} is not a multiple of num_centroids {centroids}"
        )
    if top_k > centroids:
        raise LoadError(
            f"{where}: centroid_intermediate_top_k {top_k} is more than num_centroids {centroids}"
        )
    return centroids, top_k


def _whole(config: Mapping[str, Any], name: str, where: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise LoadError(f"{where}: {name} must be a positive whole number, got {value!r}")
    return value


def source_layers(target: gemma4_text.ModelArgs) -> dict[str, int]:
    """Which of a target's layers an assistant reads: the last of each kind with keys of its own.

    Parameters
    ----------
    target : ModelArgs
        mlx-lm's of the target's text model.

    Returns
    -------
    dict of str to int
        Layer, and at the same time place among the target's caches, by ``layer_types`` word.
    """
    own = target.num_hidden_layers - target.num_kv_shared_layers
    return {kind: at for at, kind in enumerate(target.layer_types[:own])}


def check_pair(assistant: AssistantConfig, target: gemma4_text.ModelArgs, where: str) -> None:
    """Refuse an assistant that was made for another target.

    Parameters
    ----------
    assistant : AssistantConfig
        From `read_assistant`.
    target : ModelArgs
        mlx-lm's of the target's text model.
    where : str
        The assistant's config file.

    Raises
    ------
    LoadError
        Names the field and both values.
    """
    args, sources = assistant.args, source_layers(target)
    same = [
        ("backbone_hidden_size", assistant.backbone_hidden_size, target.hidden_size, "hidden_size"),
        ("vocab_size", args.vocab_size, target.vocab_size, "vocab_size"),
    ]
    for kind in dict.fromkeys(args.layer_types):
        if kind not in sources:
            raise LoadError(
                f"{where}: has a {kind} layer, but the target has none with keys of its own"
            )
        name = "head_dim" if kind == "sliding_attention" else "global_head_dim"
        same.append((name, getattr(args, name), getattr(target, name), name))
        if kind == "sliding_attention":
            same.append(
                ("sliding_window", args.sliding_window, target.sliding_window, "sliding_window")
            )
        name = f"rope_parameters of {kind}"
        same.append((name, _rope(args, kind), _rope(target, kind), name))
    for name, mine, its, its_name in same:
        if mine != its:
            raise LoadError(
                f"{where}: {name} is {mine!r}, but the target's {its_name} is {its!r}; the "
                "assistant was made for another target"
            )
    for kind in dict.fromkeys(args.layer_types):
        heads = _key_heads(target, kind)
        if args.num_attention_heads % heads:
            raise LoadError(
                f"{where}: num_attention_heads {args.num_attention_heads} is not a multiple of "
                f"the {heads} key heads of the target's {kind} layers; the assistant was made "
                "for another target"
            )


def _key_heads(args: gemma4_text.ModelArgs, kind: str) -> int:
    own = args.num_global_key_value_heads
    if kind == "full_attention" and args.attention_k_eq_v and own is not None:
        return int(own)
    return int(args.num_key_value_heads)


def _rope(args: gemma4_text.ModelArgs, kind: str) -> tuple[str, float, float]:
    """Kind, theta and rotated part; the target's keys come rotated, so queries must match."""
    rope = (args.rope_parameters or {}).get(kind, {})
    return (
        str(rope.get("rope_type", "default")),
        float(rope.get("rope_theta", 10000.0)),
        float(rope.get("partial_rotary_factor", 1.0)),
    )
