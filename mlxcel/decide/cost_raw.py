"""Samples of a cost profile as plain values: what `mlxcel.decide.cost_figures` derives from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RawCosts", "RawPart", "RawPass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPass:
    """Samples of one pass: seconds of each, and the host's seconds in it."""

    stage: str
    form: str
    width: int
    tokens: int
    waited: bool
    seconds: tuple[float, ...]
    host: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, int, int, bool]:
        """What it is known by."""
        return self.stage, self.form, self.width, self.tokens, self.waited


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPart:
    """Samples of one part of a pass, with the bytes it moves and its operations at least."""

    name: str
    form: str
    tokens: int
    seconds: tuple[float, ...]
    nbytes: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCosts:
    """Everything that figures are derived from.

    Attributes
    ----------
    backend : {"metal", "cuda", "cpu"}
        What computed; only beside a device can the host be what bounds a pass.
    layers, layers_published : int
        Layers that were built, and that the published model has.
    passes, parts
        Samples.
    bytes_per_second, flops_per_second : float or None
        Peaks of the chip, where they are known.
    """

    backend: str
    layers: int
    layers_published: int
    passes: tuple[RawPass, ...]
    parts: tuple[RawPart, ...]
    bytes_per_second: float | None = None
    flops_per_second: float | None = None
