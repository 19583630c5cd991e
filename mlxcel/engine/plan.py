"""What one round will do."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One round, as planned by the slot table.

    Attributes
    ----------
    number : int
        Round number of the slot table.
    slots, widths : list of int
        Who takes part, in row order, and how wide each row's block may be.
    bound : int
        Upper bound of length + width over the rows, in tokens.
    exact : int or None
        Length of the only row before the round, where the host knows it.
    load : int
        Width chosen for the round by the cost of rounds of several rows; 0 where it was not.
    allowed : list of int
        Widths before the drafter narrowed them.
    first : bool
        Whether no round was in flight when it was planned.
    """

    number: int
    slots: list[int]
    widths: list[int]
    bound: int
    exact: int | None
    load: int = 0
    allowed: list[int] = field(default_factory=list)
    first: bool = False

    @property
    def width(self) -> int:
        """Width of the widest row."""
        return max(self.widths)
