"""Exactness verdicts: whether a verify of K tokens says what K single steps say.

Pure: ``mlxcel.engine.exactness`` runs the two and hands over figures. A pass is evidence
about the tokens that were tried, not a proof; a failure is proof, and outranks gate and
policy. What has not been tried counts as declined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mlxcel.decide._fields import Fields
from mlxcel.errors import LoadError

__all__ = [
    "MARGIN_FACTOR",
    "Draw",
    "ExactnessRecord",
    "Level",
    "Position",
    "Required",
    "VetoState",
    "judge",
    "unprobed",
    "veto_of",
]

Level = Literal["bitwise", "token", "divergent", "unprobed"]
Required = Literal["bitwise", "token", "off"]

MARGIN_FACTOR = 8.0
"""How many times the largest logit difference of a position the top-2 margin there must be.

A choice can flip once a difference reaches half of the margin, so 8 leaves a factor of 4.
The demo model on a CPU shows differences of 1e-4 at margins down to 3e-3, a factor of 30.
"""

GROSS = 0.05
"""Difference, in parts of the range of the logits, that no rounding explains.

The comparison with the model's own caches uses other kernels than decoding does (a whole
prompt in one pass), so a near-tie may flip there and only this limit counts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One position of a draw, block against single steps.

    Attributes
    ----------
    difference : float
        Largest difference of a logit.
    margin : float
        Distance of the two best logits, the smaller of both sides'.
    same_choice, same_bits : bool
        Whether the tokens chosen, and all logits to the last bit, are equal.
    scale : float
        Range of the logits (largest minus smallest).
    """

    difference: float
    margin: float
    same_choice: bool
    same_bits: bool
    scale: float

    @property
    def holds(self) -> bool:
        """Whether the choice is safe: equal, and the margin far above the difference."""
        if self.same_bits and self.same_choice:
            return True
        return self.same_choice and MARGIN_FACTOR * self.difference <= self.margin

    @property
    def gross(self) -> bool:
        """Whether the difference is more than rounding."""
        return not self.difference <= GROSS * self.scale  # also when it is not a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One comparison over the positions of a block.

    Attributes
    ----------
    name : str
        Which, for people.
    start : int
        Tokens in the caches before the block.
    positions : tuple of Position
        In order.
    fault : str
        What else went wrong, such as a wrong number of accepted drafts.
    gross_only : bool
        Whether only `GROSS` counts, because the arms use different kernels by design.
    """

    name: str
    start: int
    positions: tuple[Position, ...]
    fault: str = ""
    gross_only: bool = False

    @property
    def first_divergent(self) -> int | None:
        """First position that fails, counted from the start of the block."""
        for at, position in enumerate(self.positions):
            if position.gross if self.gross_only else not position.holds:
                return at
        return None

    @property
    def level(self) -> Level:
        """What this draw alone supports."""
        if self.fault or self.first_divergent is not None:
            return "divergent"
        if self.gross_only or all(p.same_bits for p in self.positions):
            return "bitwise"
        return "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessRecord:
    """What a probe found.

    Attributes
    ----------
    level : {"bitwise", "token", "divergent", "unprobed"}
        The verdict.
    width : int
        Block width that was tried.
    reason : str
        One sentence without a full stop.
    draws : int
        Comparisons made.
    first_draw : str
        Name of the first draw that diverges, else empty.
    first_position : int or None
        First divergent position in it, from the start of the block.
    largest_difference, smallest_margin, smallest_factor : float
        Over all positions of block against steps: largest logit difference, smallest top-2
        margin, smallest margin in units of the difference at the same position (0 where no
        bit differs).
    layer : int or None
        Layer where the difference begins, from 0; known only after a divergence.
    layer_difference : float
        Largest difference in that layer's output, in parts of its largest value.
    seconds : float
        What the probe took.
    """

    level: Level
    width: int
    reason: str
    draws: int = 0
    first_draw: str = ""
    first_position: int | None = None
    largest_difference: float = 0.0
    smallest_margin: float = 0.0
    smallest_factor: float = 0.0
    layer: int | None = None
    layer_difference: float = 0.0
    seconds: float = 0.0

    def allows(self, required: Required) -> bool:
        """Whether bursts may run where this level is required; ``"off"`` requires nothing."""
        if required == "off":
            return True
        return self.level == "bitwise" or (self.level == "token" and required == "token")

    def located(self, layer: int | None, difference: float) -> ExactnessRecord:
        """The same with the layer where the difference begins."""
        if layer is None:
            return self
        reason = f"{self.reason}; it begins in layer {layer} ({difference:.1e} of its range)"
        return replace(self, layer=layer, layer_difference=difference, reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them."""
        return asdict(self) | {"first_draw": self.first_draw or None}

    @classmethod
    def from_dict(cls, value: object) -> ExactnessRecord:
        """Read a record that was kept.

        Raises
        ------
        LoadError
            A field is missing, unknown or out of bounds. The caller probes again.
        """
        fields = Fields(value, "exactness record")
        big = 1e30
        found = cls(
            level=fields.word("level", ("bitwise", "token", "divergent")),
            width=fields.whole("width", 2, 1024),
            reason=fields.text("reason"),
            draws=fields.whole("draws", 1, 10**6),
            first_draw=fields.text_or_none("first_draw") or "",
            first_position=fields.whole_or_none("first_position", 0, 1024),
            largest_difference=float(fields.number("largest_difference", 0, big)),
            smallest_margin=float(fields.number("smallest_margin", 0, big)),
            smallest_factor=float(fields.number("smallest_factor", 0, big)),
            layer=fields.whole_or_none("layer", 0, 10**6),
            layer_difference=float(fields.number("layer_difference", 0, big)),
            seconds=float(fields.number("seconds", 0, 1e9)),
        )
        fields.close()
        if (found.level == "divergent") != bool(found.first_draw):
            raise LoadError(f"exactness record: level {found.level!r} contradicts its draws")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class VetoState:
    """Whether exactness forbids bursts of a pairing, with everything a person may ask.

    Attributes
    ----------
    vetoed : bool
        Whether bursts are forbidden.
    required : {"bitwise", "token", "off"}
        Level that the settings ask for.
    reason : str
        Why; empty where nothing is forbidden, so that it can be given to
        ``MtpPolicy.veto`` as it is.
    record : ExactnessRecord
        What was found.
    """

    vetoed: bool
    required: Required
    reason: str
    record: ExactnessRecord

    def to_dict(self) -> dict[str, Any]:
        """JSON values: those of the record, with ``required`` and ``vetoed``."""
        return self.record.to_dict() | {"required": self.required, "vetoed": self.vetoed}


def judge(draws: Sequence[Draw], *, width: int, seconds: float = 0.0) -> ExactnessRecord:
    """Come to a verdict.

    Parameters
    ----------
    draws : sequence of Draw
        All comparisons that were made; none is as if the probe had not run.
    width : int
        Block width.
    seconds : float
        What the probe took.
    """
    if not draws or not any(draw.positions for draw in draws):
        return unprobed(width, "the exactness probe compared nothing")
    first = next((draw for draw in draws if draw.level == "divergent"), None)
    positions = [p for draw in draws if not draw.gross_only for p in draw.positions]
    largest = _finite(max((p.difference for p in positions), default=0.0))
    margin = _finite(min((p.margin for p in positions), default=0.0))
    factors = [p.margin / p.difference for p in positions if p.difference > 0]
    factor = _finite(min(factors, default=0.0))
    if first is not None:
        level: Level = "divergent"
        reason = _divergence(first)
    else:
        level = "bitwise" if all(d.level == "bitwise" for d in draws) else "token"
        reason = f"{len(draws)} draws of {width} tokens equal to the last bit"
        if level == "token":
            reason = (
                f"all choices of {len(draws)} draws of {width} tokens are equal; the logits differ "
                f"by up to {largest:.1e}, and every top-2 margin is at least {factor:.0f} times "
                "the difference at its position"
            )
    return ExactnessRecord(
        level=level,
        width=width,
        reason=reason,
        draws=len(draws),
        first_draw=first.name if first else "",
        first_position=first.first_divergent if first else None,
        largest_difference=largest,
        smallest_margin=margin,
        smallest_factor=factor,
        seconds=seconds,
    )


def unprobed(width: int, reason: str) -> ExactnessRecord:
    """The record of a probe that has not run, for this reason."""
    return ExactnessRecord(level="unprobed", width=width, reason=reason)


def veto_of(record: ExactnessRecord, required: Required = "token") -> VetoState:
    """Whether a record forbids bursts where a level is required."""
    if record.allows(required):
        return VetoState(vetoed=False, required=required, reason="", record=record)
    reason = record.reason
    if record.level == "unprobed":
        reason = f"not probed: {record.reason}"
    elif record.level == "token":
        reason = f"bitwise equality is required, but {record.reason}"
    return VetoState(vetoed=True, required=required, reason=reason, record=record)


def _divergence(draw: Draw) -> str:
    at = draw.first_divergent
    if at is None:
        return f"a block and single steps differ ({draw.name}): {draw.fault}"
    position = draw.positions[at]
    choice = "the same token is chosen" if position.same_choice else "another token is chosen"
    text = (
        f"a block and single steps differ ({draw.name}) at position {at}: {choice}, logit "
        f"difference {position.difference:.1e}, top-2 margin {position.margin:.1e}"
    )
    return f"{text}; {draw.fault}" if draw.fault else text


def _finite(value: float) -> float:
    """A number that JSON can hold."""
    return value if math.isfinite(value) else 1e30
