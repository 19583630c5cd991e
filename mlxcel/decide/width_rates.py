"""Tokens per second by block width, from rounds, with exponential forgetting.

Emitted tokens and seconds are estimated apart because they are shared differently:
acceptance by position belongs to all widths, seconds to one width up to a factor of the
host (heat, a longer context) that all widths have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.fits import least_squares
from mlxcel.decide.width_model import AcceptanceCurve, WidthPrior, emitted_moments
from mlxcel.errors import LoadError

__all__ = ["WidthRates"]

ACCEPTANCE_HALF_LIFE = 48.0
"""Rounds. About 70 count, so emitted per verify is known to 5 %, and a collapse in the
text is believed after some 40."""

COST_HALF_LIFE = 64.0
"""Rounds of one width: 15 % of jitter leaves 1.6 % of error in its cost."""

SPEED_HALF_LIFE = 16.0
"""Rounds of any width, for the factor all widths share."""

CLIP = 3.0
"""A round over this many times its expected time counts as so much: a cold kernel (1.6 s
against 74 ms on GB10) or a pause of the machine, not the cost of the width."""

SURPRISE_STEP = 0.1
"""Weight of the newest round in the running mean of how far rounds are off, in deviations."""

SURPRISE = 4 * math.sqrt(SURPRISE_STEP / (2 - SURPRISE_STEP))
"""Mean at which the text is believed to have changed: four of its own deviations, so by
luck alone about once in 50,000 rounds; a collapse gets there in some 6."""

SURPRISE_ROUNDS = 4.0
"""What acceptance from before such a change still counts."""

REFRESH = 8
"""Rounds after which acceptance is worked out anew: sooner it costs more than it tells."""

_COST_KEEP = 0.5 ** (1 / COST_HALF_LIFE)
_SPEED_STEP = 1 - 0.5 ** (1 / SPEED_HALF_LIFE)

FEW = 4.0
"""Rounds up to which the past of a width may turn out to have been the outlier."""


@dataclass(slots=True)
class _Arm:
    """One width: time of a round over the common factor, and its own tokens per round.

    ``weight`` is the rounds behind them, forgotten exponentially; ``cold`` says that the
    next round is the first of this process, which may compile.
    """

    cost: float = 0.0
    weight: float = 0.0
    emitted: float = 0.0
    rounds: int = 0
    cold: bool = True

    def observe(self, ratio: float, emitted: int) -> float:
        """Take one round in; return its ratio as it was counted."""
        if self.weight and ratio > CLIP * self.cost:
            ratio = CLIP * self.cost
        elif ratio * CLIP < self.cost and self.weight < FEW:
            self.weight = 0.0
        past = self.weight * _COST_KEEP
        self.weight = past + 1.0
        self.cost = (self.cost * past + ratio) / self.weight
        self.emitted = (self.emitted * past + emitted) / self.weight
        self.rounds += 1
        return ratio


class WidthRates:
    """What is known of each width.

    Parameters
    ----------
    widths : sequence of int
        Widths to keep, ascending, beginning with 1.
    prior : WidthPrior
        What is known before the first round.
    sequential : bool
        Whether acceptance by position is the same for every width.
    """

    def __init__(self, widths: Sequence[int], prior: WidthPrior, sequential: bool) -> None:
        self.widths = tuple(widths)
        self.speed = 0.0  # seconds of a round of relative cost 1
        self._arms = {width: _Arm() for width in widths}
        self._prior = prior
        self._sequential = sequential
        self._curve = AcceptanceCurve(widths[-1] - 1, ACCEPTANCE_HALF_LIFE, prior.acceptance)
        self._off = 0.0
        self._forget()

    def _forget(self) -> None:
        """What follows from the acceptance is worked out anew when it is asked for."""
        self._acceptance: list[float] | None = None
        self._moments: dict[int, tuple[float, float]] = {}
        self._fresh = 0

    def observe(self, width: int, emitted: int, seconds: float) -> bool:
        """Take one round in; return whether it counts.

        The first round of a width in a process does not, nor does one of a width that is
        not kept, without time, or with tokens that cannot be.
        """
        arm = self._arms.get(width)
        if arm is None or not 1 <= emitted <= width:
            return False
        if not math.isfinite(seconds) or seconds <= 0:
            return False
        if arm.cold:
            arm.cold = False
            return False
        if width > 1:
            self._compare(width, emitted)
            self._curve.observe(width, emitted)
            self._fresh += 1
            if self._fresh >= REFRESH:
                self._forget()
        self.speed = self.speed or seconds
        ratio = arm.observe(seconds / self.speed, emitted)
        if arm.weight > 1:  # the first of a width says nothing about the common factor
            self.speed *= 1 + _SPEED_STEP * (ratio / arm.cost - 1)
        return True

    def _compare(self, width: int, emitted: int) -> None:
        """Notice a change of the text long before the average has followed it."""
        mean, deviation = self.moments(width)
        off = (emitted - mean) / max(deviation, 0.1)
        self._off += SURPRISE_STEP * (off - self._off)
        if abs(self._off) > SURPRISE:
            self._off = 0.0
            self.distrust_acceptance(SURPRISE_ROUNDS)

    def measured(self, width: int) -> bool:
        """Whether rounds of this width have been counted."""
        return self._arms[width].weight > 0

    def rounds(self, width: int) -> int:
        """Rounds of this width ever counted."""
        return self._arms[width].rounds

    def rate(self, width: int) -> float:
        """Tokens per second expected at a width, 0 where nothing leads to a figure."""
        cost = self._cost(width)
        return self.emitted(width) / (cost * self.speed) if cost and self.speed else 0.0

    def emitted(self, width: int) -> float:
        """Tokens per round expected at a width."""
        arm = self._arms[width]
        if width == 1 or (not self._sequential and arm.weight):
            return max(arm.emitted, 1.0)
        return self.moments(width)[0]

    def moments(self, width: int) -> tuple[float, float]:
        """Tokens per round by the acceptance of all rounds, and their deviation."""
        found = self._moments.get(width)
        if found is None:
            found = self._moments[width] = emitted_moments(self.acceptance(), width)
        return found

    def acceptance(self) -> list[float]:
        """Acceptance by draft position, given that all before it were accepted."""
        if self._acceptance is None:
            self._acceptance = self._curve.acceptance()
        return self._acceptance

    def distrust_acceptance(self, rounds: float) -> None:
        """Let what is known of acceptance count as few rounds: it is of another text."""
        self._curve.age(rounds)
        self._forget()

    def _cost(self, width: int) -> float:
        """Relative cost: measured, else by the fit or the prior; 0 where there is none."""
        arm = self._arms[width]
        if arm.weight:
            return arm.cost
        known = [(w, a.cost, min(a.weight, 16.0)) for w, a in self._arms.items() if a.weight]
        if not known:
            return 0.0
        fit = least_squares(known)
        if fit is not None:
            return max(fit[0] + fit[1] * width, 0.5 * min(cost for _, cost, _ in known))
        at, cost, _ = known[0]
        return cost * self._prior.cost(width) / self._prior.cost(at) if self._prior.has_cost else 0

    def snapshot(self) -> list[dict[str, Any]]:
        """Figures by width; those of its own rounds are ``None`` before there are any."""
        return [
            {
                "width": width,
                "rounds": arm.rounds,
                "tokens_per_second": self.rate(width),
                "emitted_per_verify": self.emitted(width),
                "measured_emitted_per_verify": arm.emitted if arm.weight else None,
                "measured_seconds": arm.cost * self.speed if arm.weight else None,
            }
            for width, arm in self._arms.items()
        ]

    def state(self) -> dict[str, Any]:
        """All that is kept, for JSON."""
        return {
            "speed": self.speed,
            "arms": [
                {
                    "width": width,
                    "cost": arm.cost,
                    "weight": arm.weight,
                    "emitted": arm.emitted,
                    "rounds": arm.rounds,
                }
                for width, arm in self._arms.items()
            ],
            "tested": self._curve.tested,
            "accepted": self._curve.accepted,
        }

    def load(self, fields: Fields) -> None:
        """Take over a state; its first rounds are cold again.

        Raises
        ------
        LoadError
            Other widths, or a field missing, unknown or out of bounds.
        """
        speed = float(fields.number("speed", 0, 1e6))
        arms: dict[int, _Arm] = {}
        for item in fields.items("arms"):
            arms[item.whole("width", 1, 1024)] = _Arm(
                cost=float(item.number("cost", 0, 1e9)),
                weight=float(item.number("weight", 0, 1e6)),
                emitted=float(item.number("emitted", 0, 1024)),
                rounds=item.whole("rounds", 0, 10**12),
            )
            item.close()
        if tuple(arms) != self.widths:
            raise LoadError(f"{fields.where}: widths {list(arms)} are not {list(self.widths)}")
        if any(bool(arm.weight) != bool(arm.cost) for arm in arms.values()):
            raise LoadError(f"{fields.where}: a width has a cost without rounds, or the reverse")
        tested, accepted = _numbers(fields, "tested"), _numbers(fields, "accepted")
        if not len(tested) == len(accepted) == self.widths[-1] - 1 or any(
            yes > all_ + 1e-9 for yes, all_ in zip(accepted, tested, strict=True)
        ):
            raise LoadError(f"{fields.where}: accepted does not fit tested")
        fields.close()
        self._arms, self.speed = arms, speed
        self._curve.load(tested, accepted)
        self._forget()


def _numbers(fields: Fields, name: str) -> list[float]:
    value = fields.take(name)
    if not isinstance(value, list):
        raise fields.fault(name, value, "a list of numbers")
    for number in value:
        good = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not good or not 0 <= number < 1e6:
            raise fields.fault(name, number, "a list of numbers from 0")
    return [float(number) for number in value]
