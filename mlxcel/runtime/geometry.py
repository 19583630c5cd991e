"""Published sizes of a pairing: what a model of those sizes is built from, without a checkpoint.

Names and numbers only; no arrays. ``mlxcel/assets/geometries.json`` holds the published ones,
each with the place where its numbers were found.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from mlxcel.errors import ConfigError

__all__ = ["DRAFTER_KINDS", "TARGET_TYPES", "DrafterGeometry", "Geometry", "parse_geometry"]

TARGET_TYPES = ("gemma4_text", "qwen3_5", "qwen3_5_moe")
"""Model types of mlx-lm that can be built."""

DRAFTER_KINDS = ("gemma4_assistant", "qwen3_5_mtp")

_PATTERNS = {"gemma4_text": "sliding_window_pattern"}
_PATTERN = "full_attention_interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Affine quantization: bits and group size, and whether embeddings have it too."""

    bits: int
    group_size: int
    embeddings: bool = True

    @property
    def name(self) -> str:
        """As records name it."""
        return f"{self.bits}-bit"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterGeometry:
    """Sizes of a drafter.

    Attributes
    ----------
    kind : {"gemma4_assistant", "qwen3_5_mtp"}
        Architecture.
    checkpoint : str
        Name of the published checkpoint.
    quantization : Quantization
        As served: projections are quantized at load, embeddings where the checkpoint has them so.
    config : dict
        Fields of mlx-lm's ``ModelArgs``; empty for a head that has the target's.
    """

    kind: str
    checkpoint: str
    quantization: Quantization
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of a target, and of its drafter where they are known.

    Attributes
    ----------
    name, checkpoint, source : str
        Name here, name of the published checkpoint, and where the numbers were found.
    batch_capable : bool or None
        As records have it; ``None`` where no source says.
    quantization : Quantization
        Of the published checkpoint.
    config : dict
        Fields of mlx-lm's ``ModelArgs``, with ``model_type``.
    layers_published : int
        Layers of the published model; ``config`` may have fewer, see `with_layers`.
    drafter : DrafterGeometry or None
        Its drafter.
    """

    name: str
    checkpoint: str
    source: str
    batch_capable: bool | None
    quantization: Quantization
    config: dict[str, Any]
    layers_published: int
    drafter: DrafterGeometry | None

    @property
    def layers(self) -> int:
        """Layers to build."""
        return int(self.config["num_hidden_layers"])

    @property
    def pattern(self) -> int:
        """Layers after which the kinds of layers repeat."""
        return int(self.config[_PATTERNS.get(self.config["model_type"], _PATTERN)])

    def with_layers(self, layers: int | None) -> Geometry:
        """The same with fewer layers, in whole patterns, so that the mix of kinds stays.

        Raises
        ------
        ConfigError
            Not a whole number of patterns, or more layers than the published model has.
        """
        if layers is None:
            return self
        if layers < 1 or layers > self.layers_published or layers % self.pattern:
            raise ConfigError(
                f"layers of {self.name} must be a multiple of {self.pattern}, in which its kinds "
                f"of layers repeat, up to {self.layers_published}, got {layers}",
                param="layers",
            )
        return replace(self, config={**self.config, "num_hidden_layers": layers})

    def model_args(self) -> dict[str, Any]:
        """A copy of ``config`` that mlx-lm may change."""
        return copy.deepcopy(self.config)


def parse_geometry(name: str, data: object) -> Geometry:
    """Read one entry of the file of geometries.

    Parameters
    ----------
    name : str
        Its name, for messages too.
    data : object
        The JSON value.

    Raises
    ------
    ConfigError
        A field that is missing, or of the wrong kind; names it.
    """
    fields = _mapping(data, name)
    config = dict(_mapping(_taken(fields, "config", name), f"{name}: config"))
    if config.get("model_type") not in TARGET_TYPES:
        _fault(f"{name}: config: model_type", config.get("model_type"), TARGET_TYPES)
    pattern = _PATTERNS.get(config["model_type"], _PATTERN)
    for needed in ("num_hidden_layers", "vocab_size", "hidden_size", pattern):
        value = config.get(needed)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            _fault(f"{name}: config: {needed}", value, ("a positive whole number",))
    capable = fields.get("batch_capable")
    return Geometry(
        name=name,
        checkpoint=str(_taken(fields, "checkpoint", name)),
        source=str(_taken(fields, "source", name)),
        batch_capable=None if capable is None else bool(capable),
        quantization=_quantization(_taken(fields, "quantization", name), name),
        config=config,
        layers_published=int(config["num_hidden_layers"]),
        drafter=_drafter(fields.get("drafter"), f"{name}: drafter"),
    )


def _drafter(data: object, where: str) -> DrafterGeometry | None:
    if data is None:
        return None
    fields = _mapping(data, where)
    kind = fields.get("kind")
    if kind not in DRAFTER_KINDS:
        _fault(f"{where}: kind", kind, DRAFTER_KINDS)
    return DrafterGeometry(
        kind=str(kind),
        checkpoint=str(_taken(fields, "checkpoint", where)),
        quantization=_quantization(_taken(fields, "quantization", where), where),
        config=dict(_mapping(fields.get("config", {}), f"{where}: config")),
    )


def _quantization(data: object, where: str) -> Quantization:
    fields = _mapping(data, f"{where}: quantization")
    values = {name: fields.get(name) for name in ("bits", "group_size")}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            _fault(f"{where}: quantization: {name}", value, ("a positive whole number",))
    return Quantization(
        bits=int(fields["bits"]),
        group_size=int(fields["group_size"]),
        embeddings=bool(fields.get("embeddings", True)),
    )


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        _fault(where, data, ("an object with named fields",))
    return data


def _taken(fields: Mapping[str, Any], name: str, where: str) -> Any:
    if not fields.get(name):
        _fault(f"{where}: {name}", fields.get(name), ("there",))
    return fields[name]


def _fault(where: str, value: object, wanted: tuple[str, ...]) -> NoReturn:
    raise ConfigError(
        f"geometry {where} must be {' or '.join(wanted)}, got {value!r}", param="geometry"
    )
