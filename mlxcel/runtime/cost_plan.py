"""What a cost profile measures: forms, widths, padding, context, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.errors import ConfigError
from mlxcel.runtime.geometry_model import FORMS

__all__ = ["JUDGED_WIDTH", "CostPlan"]

JUDGED_WIDTH = 4
"""Width whose round is run whole, and whose verify is taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """What to measure.

    Attributes
    ----------
    forms : tuple of str
        Representations of the target's weights.
    widths : tuple of int
        Block widths of verifies; 1 is a verify of the bonus token alone.
    pads : tuple of int
        1 for no padding; another number: narrower verifies are also fed that many tokens.
    context : int
        Tokens in the caches.
    length_step : int
        Tokens by which cache buffers grow, as in the engine.
    rounds : int
        Passes in a row that make one sample.
    repeats : int
        Samples of each pass.
    budget : float
        Seconds, from the end of the first samples, after which no further sample begins.

    Raises
    ------
    ConfigError
        An empty list, a width below 1, or a number that is not positive.
    """

    forms: tuple[str, ...] = FORMS
    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    pads: tuple[int, ...] = (1, 8)
    context: int = 640
    length_step: int = 256
    rounds: int = 4
    repeats: int = 5
    budget: float = 120.0

    def __post_init__(self) -> None:
        for name in ("forms", "widths", "pads"):
            if not getattr(self, name):
                raise ConfigError(f"{name} of a cost profile must not be empty", param=name)
        for name in ("context", "length_step", "rounds", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} of a cost profile must be positive, got {getattr(self, name)}",
                    param=name,
                )
        if min(*self.widths, *self.pads) < 1 or JUDGED_WIDTH not in self.widths:
            raise ConfigError(
                f"widths and pads must be positive and {JUDGED_WIDTH} among the widths, got "
                f"{list(self.widths)} and {list(self.pads)}",
                param="widths",
            )

    def shapes(self) -> list[tuple[int, int]]:
        """Width and tokens fed of every verify, narrow ones first."""
        found = {
            (width, tokens)
            for width in self.widths
            for tokens in (width if pad == 1 else pad for pad in self.pads)
            if tokens >= width and (width > 1 or tokens == 1)
        }
        return sorted(found)

    @property
    def widest(self) -> int:
        """Most tokens that a pass is fed."""
        return max(*self.widths, *self.pads)
