"""What a cost profile measured: seconds of passes and of their parts, as frozen values.

Facts only; ``mlxcel.runtime.cost_profile`` takes them, ``mlxcel.decide.cost_figures`` draws the
conclusions. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CostTimes", "PartKey", "PartTime", "PassKey", "Sample", "Stage"]

Stage = Literal["classic", "verify", "draft", "round", "head"]


@dataclass(frozen=True, slots=True, order=True)
class PassKey:
    """Which pass.

    Attributes
    ----------
    stage : {"classic", "verify", "draft", "round", "head"}
        A classic step; a verify; one step of the drafter; drafts and verify of one round; the
        output head alone, by which a model of fewer layers is scaled.
    form : {"stored", "dense"}
        Representation of the target's weights.
    width : int
        Block width in tokens.
    tokens : int
        Tokens that are fed: the width, or more where the verify is padded.
    waited : bool
        Whether every pass was waited for before the next one was enqueued.
    """

    stage: Stage
    form: str
    width: int
    tokens: int
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one pass, a mean over several in a row, and what the host took of them."""

    seconds: float
    host: float


@dataclass(frozen=True, slots=True, order=True)
class PartKey:
    """Which part of a pass: name, form of the weights, tokens fed."""

    name: str
    form: str
    tokens: int


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of a pass, of all layers, timed alone.

    Attributes
    ----------
    seconds : tuple of float
        Every sample, in order.
    nbytes : int
        Bytes that it must read or write at least once: weights, keys and values, states.
    flops : float
        Floating point operations of its products, a multiply-add counting as two.
    """

    seconds: tuple[float, ...]
    nbytes: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTimes:
    """All times of one geometry on one host.

    Attributes
    ----------
    layers, layers_published : int
        Layers that were built, and that the published model has.
    context, columns : int
        Tokens in the caches, and positions that a verify of a full layer reads.
    backend : {"metal", "cuda", "cpu"}
        What computed.
    dtype : str
        Type of activations, scales and dense weights.
    caches : {"slot", "native"}
        Whether passes ran on slot caches as the engine does, or on mlx-lm's own with the state
        put back by reference, where slot caches cannot serve the model.
    passes : mapping of PassKey to tuple of Sample
        In the order they were taken; first evaluations, which compile, are not among them.
    parts : mapping of PartKey to PartTime
        Parts of passes.
    target_bytes : mapping of str to int
        Bytes of the target's weights by form.
    drafter_bytes : int
        Bytes of the drafter's weights; 0 without one.
    skipped : mapping of str to str
        Forms that were not built and why.
    seconds : float
        What the whole took, building included.
    """

    layers: int
    layers_published: int
    context: int
    columns: int
    backend: str
    dtype: str
    caches: str
    passes: Mapping[PassKey, tuple[Sample, ...]]
    parts: Mapping[PartKey, PartTime]
    target_bytes: Mapping[str, int]
    drafter_bytes: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
