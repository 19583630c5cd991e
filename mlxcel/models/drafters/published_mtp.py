"""Heads that Qwen 3.5, 3.6, 3.8 and Qwen3-Next are published with: names, forms and norms.

A checkpoint has the head's tensors under one of several prefixes, its experts in one of three
forms, and its norms as multipliers or as what is to be added to one. `parts_of` maps all of that to
the names of `MTPHead`; `centred_norms` finds out which norms want a one added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel.errors import LoadError
from mlxcel.models.target import Target

__all__ = [
    "PUBLISHED_TYPE",
    "Part",
    "centred_norms",
    "check_config",
    "head_name",
    "parts_of",
    "quantization_mode",
    "quantized_as",
]

PUBLISHED_TYPE = "qwen3_5_mtp"

_PREFIXES = ("language_model.mtp.", "model.language_model.mtp.", "model.mtp.", "mtp.")
_SHARED = ("embed_tokens.", "lm_head.")  # copies of the target's, which the head uses anyway
_EXPERT = re.compile(r"(.*\.mlp\.)experts\.(\d+)\.(\w+_proj)\.weight")
_CHECKED = (
    "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "num_experts", "moe_intermediate_size",
    "shared_expert_intermediate_size",
)  # fmt: skip
_OF_HEAD = ("norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")
_OF_LAYER = ("input_layernorm.weight", "post_attention_layernorm.weight")
_OF_ATTENTION = ("q_norm.weight", "k_norm.weight")

Arrays = Mapping[str, mx.array]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the head, and how it is made of a checkpoint's.

    Attributes
    ----------
    shape : tuple of int
        Known without reading it.
    sources : tuple of str
        Names in the checkpoint.
    make : callable
        From the checkpoint's arrays to this one.
    """

    shape: tuple[int, ...]
    sources: tuple[str, ...]
    make: Callable[[Arrays], mx.array]


def check_config(config: Mapping[str, Any], target: Target, where: str) -> None:
    """Compare the config of a checkpoint that holds a head with the target.

    Parameters
    ----------
    config : mapping
        ``config.json`` of the head, or of the model it lies in.
    target : Target
        The model it shall draft for.
    where : str
        The file, for messages.

    Raises
    ------
    LoadError
        A field differs, or there is more than one layer.
    """
    text = config.get("text_config") or config
    args = target.core.args
    for name in _CHECKED:
        told, own = text.get(name), getattr(args, name, None)
        if told is not None and own is not None and told != own:
            raise LoadError(
                f"{where}: {name} is {told!r}, but the target's is {own!r}; the head was made for "
                "another target"
            )
    layers = text.get("mtp_num_hidden_layers", 1)
    if layers not in (0, 1):  # 0 where a conversion has dropped it, which its tensors tell better
        raise LoadError(
            f"{where}: mtp_num_hidden_layers is {layers!r}; heads of one layer are known here"
        )


def head_name(name: str, *, bare: bool = False) -> str | None:
    """Name of a checkpoint's tensor within the head; ``None`` for one that is no part of it."""
    prefix = next((each for each in _PREFIXES if name.startswith(each)), None)
    inner = name if prefix is None else name.removeprefix(prefix)
    return None if (prefix is None and not bare) or inner.startswith(_SHARED) else inner


def parts_of(shapes: Mapping[str, tuple[int, ...]], *, bare: bool = False) -> dict[str, Part]:
    """The head's tensors by their names in `MTPHead`, from the shapes of a checkpoint's.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Of all tensors of the checkpoint.
    bare : bool
        Whether the checkpoint holds nothing but the head, so that names may have no prefix.
    """
    named = ((head_name(full, bare=bare), full) for full in shapes)
    held = {name: full for name, full in named if name is not None}
    parts: dict[str, Part] = {}
    experts: dict[str, dict[int, str]] = {}
    for name, full in held.items():
        if match := _EXPERT.fullmatch(name):
            joined = f"{match[1]}switch_mlp.{match[3]}.weight"
            experts.setdefault(joined, {})[int(match[2])] = full
        elif name.endswith(".experts.gate_up_proj"):
            parts |= _split_experts(name.removesuffix("experts.gate_up_proj"), full, shapes[full])
        elif name.endswith(".experts.down_proj"):
            joined = name.removesuffix("experts.down_proj") + "switch_mlp.down_proj.weight"
            parts[joined] = _plain(full, shapes[full])
        else:
            parts[name] = _plain(full, shapes[full])
    for joined, by_number in experts.items():
        names = tuple(by_number[at] for at in sorted(by_number))
        parts[joined] = Part((len(names), *shapes[names[0]]), names, _stacked(names))
    return parts


def _plain(name: str, shape: tuple[int, ...]) -> Part:
    return Part(tuple(shape), (name,), lambda arrays: arrays[name])


def _stacked(names: tuple[str, ...]) -> Callable[[Arrays], mx.array]:
    return lambda arrays: mx.stack([arrays[name] for name in names])


def _split_experts(start: str, name: str, shape: tuple[int, ...]) -> dict[str, Part]:
    """Gate and up projections of all experts, which lie in one tensor one after the other."""
    count, both, columns = shape
    half = both // 2
    half_shape = (count, half, columns)
    return {
        f"{start}switch_mlp.gate_proj.weight": Part(
            half_shape, (name,), lambda arrays: arrays[name][:, :half]
        ),
        f"{start}switch_mlp.up_proj.weight": Part(
            half_shape, (name,), lambda arrays: arrays[name][:, half:]
        ),
    }


def quantization_mode(config: Mapping[str, Any]) -> str:
    """Mode of quantized tensors without biases, as ``config.json`` says; ``affine`` by default."""
    table = config.get("quantization") or config.get("quantization_config")
    return str(table.get("mode", "affine")) if isinstance(table, Mapping) else "affine"


def quantized_as(head: nn.Module, parts: Mapping[str, Part], mode: str, where: str) -> None:
    """Make those modules of a head quantized that the checkpoint has quantized; lazy.

    Bits and group size are read from the shapes, since conversions name the modules differently in
    their config.

    Parameters
    ----------
    head : nn.Module
        Dense, as built.
    parts : mapping of str to Part
        What the checkpoint has.
    mode : str
        Of tensors without biases, see `quantization_mode`; those with biases are affine.
    where : str
        The folder, for messages.

    Raises
    ------
    LoadError
        Shapes that no quantization of this head has.
    """

    def form(path: str, module: nn.Module) -> bool | dict[str, Any]:
        scales, packed = parts.get(f"{path}.scales"), parts.get(f"{path}.weight")
        if scales is None or packed is None or not hasattr(module, "to_quantized"):
            return False
        columns = int(module.weight.shape[-1])
        bits, rest = divmod(packed.shape[-1] * 32, columns)
        if rest or not bits or columns % scales.shape[-1]:
            raise LoadError(
                f"{where}: {path} is quantized to {packed.shape} with scales {scales.shape}, which "
                f"does not fit rows of {columns}"
            )
        affine = f"{path}.biases" in parts
        group = columns // scales.shape[-1]
        return {"bits": bits, "group_size": group, "mode": "affine" if affine else mode}

    nn.quantize(head, class_predicate=form)


def centred_norms(norms: Arrays, *, raw: bool | None) -> set[str]:
    """Which norms are stored as what is to be added to one.

    Original checkpoints store all of them so, and conversions for MLX none; but a conversion that
    copies a head as it is, or shifts the names it knows only, has some. The two norms in front of
    ``fc`` have small multipliers (published: 0.49 and 0.27), so their size tells nothing; that a
    multiplier is negative on average does, since no norm is trained to turn its input around.

    Parameters
    ----------
    norms : mapping of str to mx.array
        The head's, by their names in `MTPHead`.
    raw : bool or None
        Whether the checkpoint's other tensors are in the original form; ``None``: unknown.

    Returns
    -------
    set of str
        Names of those that want a one added.
    """
    if raw:
        return set(norms)
    means = {name: _mean(value) for name, value in norms.items()}
    of_layer = [mean for name, mean in means.items() if name.endswith(_OF_LAYER)]
    layer_centred = bool(of_layer) and sum(of_layer) / len(of_layer) < 0.5
    inner = {name for name in norms if name.endswith(_OF_LAYER + _OF_ATTENTION)}
    outer = {name for name in norms if name in _OF_HEAD}
    outer_centred = layer_centred or any(means[name] < 0 for name in outer)
    return (inner if layer_centred else set()) | (outer if outer_centred else set())


def _mean(value: mx.array) -> float:
    found: Any = mx.mean(value.astype(mx.float32)).item()
    return float(found)
