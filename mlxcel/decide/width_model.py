"""What a block width yields and costs, as models: acceptance by position, affine cost.

A drafter that proposes one token after the other is accepted at a position whatever the
width of the block, so a round of any width tells about every position that it reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.errors import ConfigError

__all__ = ["AcceptanceCurve", "WidthPrior", "emitted_moments"]

PRIOR_ROUNDS = 4.0
"""Rounds that a prior acceptance is worth against measured ones."""

PRIOR_ACCEPTANCE = 0.6
"""Acceptance of the first position where nothing is known: the middle of 0.35 to 0.95."""

LARGEST_UNIT = 1e12
"""Weight of the newest round at which all weights are scaled down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthPrior:
    """What is known of a pairing before its first round.

    Attributes
    ----------
    acceptance : tuple of float
        Acceptance by draft position, given that all before it were accepted.
    base, slope : float
        ``cost(K) = base + slope * K`` of a round, in any unit of time; 0 and 0 where no
        fit exists.

    Raises
    ------
    ConfigError
        An acceptance outside 0 to 1, or a cost that is not positive at width 2.
    """

    acceptance: tuple[float, ...] = ()
    base: float = 0.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        for value in self.acceptance:
            if not 0 <= value <= 1:
                raise ConfigError(f"width prior: acceptance must be 0 to 1, got {value!r}")
        if not (math.isfinite(self.base) and math.isfinite(self.slope)):
            raise ConfigError(f"width prior: cost {self.base} + {self.slope} K is not finite")
        if (self.base or self.slope) and self.base + 2 * self.slope <= 0:
            raise ConfigError(f"width prior: cost {self.base} + {self.slope} K is not positive")

    @property
    def has_cost(self) -> bool:
        """Whether it comes with a cost fit."""
        return bool(self.base or self.slope)

    def cost(self, width: int) -> float:
        """Cost of a round by the fit."""
        return self.base + self.slope * width


def emitted_moments(acceptance: Sequence[float], width: int) -> tuple[float, float]:
    """Expected tokens per verify at a width, and their standard deviation.

    Parameters
    ----------
    acceptance : sequence of float
        Acceptance by position, given that all before it were accepted; ``width - 1`` or more.
    width : int
        Block width, tokens.

    Returns
    -------
    mean, deviation : float
        The mean is 1 for the bonus token, plus the chance of each draft to be reached and
        accepted.
    """
    accepted = square = 0.0
    reached = 1.0
    for at, chance in enumerate(acceptance[: width - 1]):
        reached *= chance
        accepted += reached
        square += (2 * at + 1) * reached  # n drafts or more are accepted: n**2 by differences
    return 1.0 + accepted, math.sqrt(max(square - accepted**2, 0.0))


class AcceptanceCurve:
    """Acceptance by draft position, forgotten exponentially.

    Parameters
    ----------
    positions : int
        Draft positions kept.
    half_life : float
        Rounds after which a round counts half.
    prior : sequence of float
        Acceptance to start from, by position.
    worth : float
        Rounds that the prior counts.
    """

    def __init__(
        self,
        positions: int,
        half_life: float,
        prior: Sequence[float] = (),
        worth: float = PRIOR_ROUNDS,
    ) -> None:
        self._worth = worth
        self._grow = 2.0 ** (1 / half_life)
        self._prior = tuple(prior[:positions])
        self.load([0.0] * positions, [0.0] * positions)

    def load(self, tested: Sequence[float], accepted: Sequence[float]) -> None:
        """Take over counts by position."""
        # The newest round counts `_unit`: that grows, so that the older ones need no update.
        self._unit = 1.0
        self._tested, self._accepted = list(tested), list(accepted)

    def expect(self, prior: Sequence[float]) -> None:
        """Start from another acceptance by position."""
        self._prior = tuple(prior)

    @property
    def tested(self) -> list[float]:
        """Rounds that reached each position, the newest one counted as 1."""
        return [value / self._unit for value in self._tested]

    @property
    def accepted(self) -> list[float]:
        """Those of them in which its draft was accepted."""
        return [value / self._unit for value in self._accepted]

    def observe(self, width: int, emitted: int) -> None:
        """Take one round in: ``emitted`` tokens of a block of ``width``."""
        self._unit = unit = self._unit * self._grow
        tested, accepted = self._tested, self._accepted
        for at in range(emitted - 1):
            tested[at] += unit
            accepted[at] += unit
        if emitted < width:
            tested[emitted - 1] += unit
        if unit > LARGEST_UNIT:
            self.load(self.tested, self.accepted)

    def age(self, rounds: float) -> None:
        """Let everything known count as at most so many rounds: it is of another time."""
        tested = self.tested
        if tested and tested[0] > rounds:
            factor = rounds / tested[0]
            self.load(
                [value * factor for value in tested], [value * factor for value in self.accepted]
            )

    def acceptance(self) -> list[float]:
        """Acceptance by position; one without rounds takes that of the one before."""
        found = []
        guess = PRIOR_ACCEPTANCE
        worth = self._worth * self._unit
        for at, (tested, accepted) in enumerate(zip(self._tested, self._accepted, strict=True)):
            if at < len(self._prior):
                guess = self._prior[at]
            guess = (accepted + worth * guess) / (tested + worth)
            found.append(guess)
        return found
