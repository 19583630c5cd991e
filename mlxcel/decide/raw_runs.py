"""Raw samples of one row of a measured record: every run as it was timed, in the order it ran.

A row is measured in blocks of four runs, classic, speculative, speculative, classic (ABBA), so
that a steady drift of the host weighs on both arms alike. One more classic run stands before
the first block and one after the last: the null arm, which shows the drift itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mlxcel.errors import LoadError

__all__ = ["BLOCK", "Arm", "Difference", "RawRow", "Run"]

Arm = Literal["classic", "speculative"]

BLOCK: tuple[Arm, ...] = ("classic", "speculative", "speculative", "classic")
"""The arms of one block, in the order they run."""

_SLACK = 1e-3  # seconds: starts are rounded

_LEAST_SECONDS = 1e-9  # below it a speed is no finite number

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request, decoded alone.

    Attributes
    ----------
    arm : {"classic", "speculative"}
        Which arm it belongs to.
    tokens : int
        Tokens decoded in `seconds`; the first token of an answer comes from the prompt pass
        and is not one of them.
    seconds : float
        Wall time from the first token to the last, with all that happens in a round inside.
    rounds : int
        Passes of the target; of a classic run, its steps.
    proposed, accepted : int
        Drafts.
    width_min, width_max : int
        Narrowest and widest round that ran; 1 is a classic step.
    ids_sha256 : str
        Hex digest of the token ids in decimal, joined by commas.
    started_s : float
        Seconds since the campaign began.
    accepted_by_position : tuple of int
        Accepted drafts by their place in the block, from the first.
    profiling : bool
        Whether the adaptive policy was still timing classic steps inside this run.
    """

    arm: Arm
    tokens: int
    seconds: float
    rounds: int
    proposed: int
    accepted: int
    width_min: int
    width_max: int
    ids_sha256: str
    started_s: float
    accepted_by_position: tuple[int, ...]
    profiling: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < _LEAST_SECONDS:
            raise LoadError(
                f"seconds {self.seconds} of a run must be positive, at least {_LEAST_SECONDS:g}"
            )
        if not self.rounds <= self.tokens <= self.rounds * max(self.width_max, 1):
            raise LoadError(
                f"tokens {self.tokens} do not fit {self.rounds} rounds of 1 to {self.width_max}"
            )
        if self.width_min > self.width_max:
            raise LoadError(f"width_min {self.width_min} is above width_max {self.width_max}")
        if not self.accepted <= self.proposed <= self.rounds * (self.width_max - 1):
            raise LoadError(
                f"accepted {self.accepted} of proposed {self.proposed} drafts do not fit "
                f"{self.rounds} rounds of width {self.width_max}"
            )
        if sum(self.accepted_by_position) != self.accepted:
            raise LoadError(
                f"accepted_by_position adds up to {sum(self.accepted_by_position)}, not to "
                f"accepted {self.accepted}"
            )
        if self.arm == "classic" and (self.width_max != 1 or self.proposed):
            raise LoadError("a classic run has rounds of width 1 and no drafts")
        if not _SHA256.fullmatch(self.ids_sha256):
            raise LoadError(f"ids_sha256 {self.ids_sha256!r} is no SHA-256 in hexadecimal")

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative answer first differs from the classic one.

    Attributes
    ----------
    position : int
        Index of the token in the answer, from 0.
    margin : float or None
        Difference of the two best log-probabilities there in the classic answer; ``None`` where
        the answers agree as far as they go and one ends before the other.
    """

    position: int
    margin: float | None


@dataclass(frozen=True, slots=True)
class RawRow:
    """All runs of a row.

    Attributes
    ----------
    pairs : tuple of tuple of Run
        Blocks of four, see `BLOCK`. In a sweep the widths of a round share its two classic runs.
    null : tuple of Run
        The classic run before the first block and the one after the last.

    Raises
    ------
    LoadError
        No block, arms in another order, or runs that overlap in time.
    """

    pairs: tuple[tuple[Run, ...], ...]
    null: tuple[Run, ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise LoadError("pairs must hold at least one block of four runs")
        for number, block in enumerate(self.pairs):
            arms = tuple(run.arm for run in block)
            if arms != BLOCK:
                raise LoadError(f"pairs[{number}] must run {', '.join(BLOCK)}, got {arms}")
        if tuple(run.arm for run in self.null) != ("classic", "classic"):
            raise LoadError("null must hold two classic runs: the first and the last")
        for before, after in pairwise(self.in_order()):
            if after.started_s < before.started_s + before.seconds - _SLACK:
                raise LoadError(
                    f"the run started at {after.started_s} s overlaps the one before it, which "
                    f"ran from {before.started_s} s for {before.seconds} s"
                )

    def in_order(self) -> Iterator[Run]:
        """Every run, as they ran."""
        yield self.null[0]
        for block in self.pairs:
            yield from block
        yield self.null[1]

    def of(self, arm: Arm) -> tuple[Run, ...]:
        """The runs of one arm in the blocks, as they ran."""
        return tuple(run for block in self.pairs for run in block if run.arm == arm)

    def classic(self) -> tuple[Run, ...]:
        """Every classic run, those of the null arm included, as they ran."""
        return tuple(run for run in self.in_order() if run.arm == "classic")
