"""What the config of an EAGLE head says, in any spelling, and whether it fits a target.

Four spellings are in use. The authors' own (SafeAILab) is a Llama config of one layer; so are those
of SGLang's trainers, which put the layers that are read into ``eagle_config``; vLLM's older one has
the layer under ``model``; speculators have it under ``transformer_layer_config``. No weight is
needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlx_lm.models import llama, qwen2, qwen3

from mlxcel.errors import LoadError
from mlxcel.models.drafters.mtp import model_type
from mlxcel.models.target import Target

__all__ = ["EagleConfig", "EagleKind", "check_pair", "named_kind", "read_eagle"]

EagleKind = Literal["eagle", "eagle3"]

_IDS = "eagle_aux_hidden_state_layer_ids"
_TARGETS = (llama.Model, qwen2.Model, qwen3.Model)
# What a llama config means where a field is left out.
_DEFAULTS: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"}
# Variants with other equations, by the values that all heads known here have.
_FIXED: dict[str, Any] = {"layernorms": False, "add_para_norm": False, "logit_scale": 1.0}


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """A head as its config describes it.

    Attributes
    ----------
    args : ModelArgs
        mlx-lm's, of the head's one layer, which need not be like the target's.
    target_hidden_size : int
        Width of the target's hidden states.
    draft_vocab_size : int
        Rows of the output head of an EAGLE-3 head.
    aux : tuple of int
        Behind how many of the target's layers an EAGLE-3 head reads; empty: as is usual for a
        target of that many layers.
    norm_before_residual, norm_before_fc : bool
        Whether the layer's residual is the normed state; whether features are normed at first.
    bias : bool or None
        Whether ``fc`` has a bias; ``None`` where the config does not say.
    """

    args: llama.ModelArgs
    target_hidden_size: int
    draft_vocab_size: int
    aux: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    bias: bool | None


def named_kind(config: Mapping[str, Any]) -> EagleKind | None:
    """Which kind of head a config names; ``None`` where it names none.

    The authors' own configs of EAGLE-1 heads are those of a llama, which only tensors tell apart.

    Parameters
    ----------
    config : mapping
        ``config.json``.
    """
    told = config.get("speculators_model_type", config.get("model_type"))
    classes = config.get("architectures")
    names = " ".join(map(str, classes if isinstance(classes, list) else ())).lower()
    if told == "eagle3" or "eagle3" in names:
        return "eagle3"
    if told == "eagle" or "eagle" in names:
        return "eagle"
    reduced = "draft_vocab_size" in config and config.get("num_hidden_layers") == 1
    return "eagle3" if reduced else None


def read_eagle(config: Mapping[str, Any], kind: EagleKind, where: str) -> EagleConfig:
    """Read ``config.json`` of an EAGLE head.

    Parameters
    ----------
    config : mapping
        The whole file.
    kind : {"eagle", "eagle3"}
        From `named_kind`, or from the tensors.
    where : str
        Its path, for messages.

    Raises
    ------
    LoadError
        A field is missing, or has a value of a variant that is not known here.
    """
    inners = (config.get("transformer_layer_config"), config.get("model"), config)
    inner = next(each for each in inners if isinstance(each, Mapping))
    full = {**_DEFAULTS, **_rotation(inner), **inner}
    full = {name: _DEFAULTS.get(name) if value is None else value for name, value in full.items()}
    layers = full.get("num_hidden_layers", 1)
    if layers != 1:
        raise LoadError(f"{where}: num_hidden_layers is {layers!r}; heads of one layer are known")
    if full["hidden_act"] != "silu":
        raise LoadError(f"{where}: hidden_act must be 'silu', got {full['hidden_act']!r}")
    eagle = config.get("eagle_config") or {}
    for name, value in {**_FIXED, "use_aux_hidden_state": True}.items():
        found = eagle.get(name, config.get(name, value))
        if found != value and not (name == "use_aux_hidden_state" and kind == "eagle"):
            raise LoadError(f"{where}: {name} is {found!r}; only heads with {value!r} are known")
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    sizes = {name: _whole(full, name, where) for name in names}
    args = _args(full, sizes, where)
    target_size = config.get("target_hidden_size") or sizes["hidden_size"]
    drafts = config.get("draft_vocab_size") or sizes["vocab_size"]
    if type(drafts) is not int or not 0 < drafts <= sizes["vocab_size"]:
        raise LoadError(
            f"{where}: draft_vocab_size must be 1 to {sizes['vocab_size']}, got {drafts!r}"
        )
    bias = config.get("fusion_bias", config.get("bias"))
    return EagleConfig(
        args=args,
        target_hidden_size=target_size,
        draft_vocab_size=drafts,
        aux=_places(config, where),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_before_fc=bool(config.get("norm_before_fc", False)),
        bias=bias if isinstance(bias, bool) else None,
    )


def _rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the rotation as mlx-lm has them; transformers 5 has them under one name."""
    table = config.get("rope_parameters")
    if not isinstance(table, Mapping):
        return {}
    found = {"rope_theta": table.get("rope_theta", _DEFAULTS["rope_theta"])}
    if table.get("rope_type", "default") != "default":
        found["rope_scaling"] = dict(table)
    return found


def _args(full: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> llama.ModelArgs:
    heads = sizes["num_attention_heads"]
    groups = full.get("num_key_value_heads") or heads
    if type(groups) is not int or groups < 1 or heads % groups:
        raise LoadError(
            f"{where}: num_attention_heads {heads} is no multiple of num_key_value_heads {groups!r}"
        )
    if not full.get("head_dim") and sizes["hidden_size"] % heads:
        raise LoadError(
            f"{where}: hidden_size {sizes['hidden_size']} is no multiple of num_attention_heads "
            f"{heads}, and there is no head_dim"
        )
    scaling = full.get("rope_scaling")
    if isinstance(scaling, Mapping) and "rope_type" not in scaling and "type" not in scaling:
        raise LoadError(f"{where}: rope_scaling names no rope_type: {scaling!r}")
    return llama.ModelArgs(
        model_type="llama",
        num_hidden_layers=1,
        num_key_value_heads=groups,
        head_dim=full.get("head_dim"),
        rms_norm_eps=float(full["rms_norm_eps"]),
        rope_theta=float(full["rope_theta"]),
        rope_scaling=dict(scaling) if isinstance(scaling, Mapping) else None,
        max_position_embeddings=full.get("max_position_embeddings"),
        attention_bias=bool(full.get("attention_bias", False)),
        mlp_bias=bool(full.get("mlp_bias", False)),
        **sizes,
    )


def _places(config: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Behind how many layers features are taken; see docs/decisions/0020-eagle-heads.md.

    vLLM's field, on top, has the layer that the state enters; SGLang's, within ``eagle_config``,
    the layer that it comes from.
    """
    eagle = config.get("eagle_config")
    inner = eagle.get(_IDS) if isinstance(eagle, Mapping) else None
    ids, more = (config[_IDS], 0) if config.get(_IDS) else (inner or [], 1)
    if not isinstance(ids, list) or any(type(each) is not int for each in ids):
        raise LoadError(f"{where}: {_IDS} must be a list of whole numbers, got {ids!r}")
    return tuple(each + more for each in ids)


def _whole(config: Mapping[str, Any], name: str, where: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise LoadError(f"{where}: {name} must be a positive whole number, got {value!r}")
    return value


def check_pair(config: EagleConfig, kind: EagleKind, target: Target, where: str) -> None:
    """Refuse a head that was made for another target.

    Parameters
    ----------
    config : EagleConfig
        From `read_eagle`.
    kind : {"eagle", "eagle3"}
        Of the head.
    target : Target
        The model it shall draft for.
    where : str
        The head's config file.

    Raises
    ------
    LoadError
        Names the field and both values, or what the target lacks.
    """
    if not isinstance(target.core, _TARGETS) or not target.split:
        raise LoadError(
            f"{where}: EAGLE heads draft for targets of the Llama kind (llama, mistral, qwen2, "
            f"qwen3), not for {model_type(target)!r}"
        )
    own = target.core.args
    same = [
        ("vocab_size", config.args.vocab_size, own.vocab_size),
        ("target_hidden_size", config.target_hidden_size, own.hidden_size),
    ]
    if kind == "eagle":
        same.append(("hidden_size", config.args.hidden_size, own.hidden_size))
    for name, told, value in same:
        if told != value:
            raise LoadError(
                f"{where}: {name} is {told}, but the target's is {value}; the head was made for "
                "another target"
            )
