"""What is held at one row count, and which width is tried there next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.decide.load_table import LoadTable, worth
from mlxcel.decide.width_arms import WidthArms
from mlxcel.decide.width_challenge import MARGIN, first_step

__all__ = ["MAX_WAIT", "WAIT", "WARM_UP", "Held", "Trial", "candidate", "promising"]

WARM_UP = 4
"""Counted rounds of a row count before its first trial, and between trials that promise."""

WAIT = 32
"""Counted rounds of a row count between trials; doubled by each that changed nothing."""

MAX_WAIT = 512
"""Longest wait, rounds."""


@dataclass(slots=True)
class Trial:
    """A width being tried; ``seconds`` of the ``counted`` ones of the ``ran`` rounds."""

    width: int
    ran: int = 0
    counted: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Held:
    """What is held and tried at one row count.

    Attributes
    ----------
    holder : int
        Width held; 1 is parked.
    rounds, due, wait : int
        Counted rounds so far; the one from which a width may be tried; how long to wait if
        that changes nothing.
    losses : int
        Trials since the holder changed.
    trial : Trial or None
        The trial that goes on.
    tokens : sequence of float
        Tokens by width that it was last considered with.
    seen, since : int
        ``rounds`` then, and when the holder changed.
    """

    holder: int
    rounds: int = 0
    due: int = WARM_UP
    wait: int = WAIT
    losses: int = 0
    trial: Trial | None = None
    tokens: Sequence[float] = ()
    seen: int = -1
    since: int = 0

    def hold(self, width: int) -> None:
        """Hold another width; if the last was held for a short time only, trials get rarer."""
        soon = self.rounds - self.since < 2 * self.wait
        self.wait = min(2 * self.wait, MAX_WAIT) if soon and self.since else WAIT
        self.holder, self.losses, self.since = width, 0, self.rounds
        self.due = self.rounds + (self.wait if width == 1 else WARM_UP)


def candidate(table: LoadTable, arms: WidthArms, bucket: int, its: Held, start: int) -> int | None:
    """Who is tried: what promises, else in turn whatever has not been looked at for longest.

    Parameters
    ----------
    table : LoadTable
        Seconds.
    arms : WidthArms
        Which widths may run.
    bucket : int
        Row count, of `bucket_of`.
    its : Held
        What is held there.
    start : int
        Width to try first.
    """
    widths = arms.within(1)
    others = [width for width in widths if width != its.holder]
    first = promising(table, arms, bucket, its, start)
    if first is not None or not others:
        return first
    if its.holder == 1:
        best = max(others, key=lambda width: _guessed(table, bucket, its, width))
        return best if its.losses % 2 == 0 else others[0]
    at = widths.index(its.holder)
    near = {1, *widths[max(at - 1, 0) : at + 2]} - {its.holder}
    return min(sorted(near), key=lambda width: table.last(bucket, width))


def promising(table: LoadTable, arms: WidthArms, bucket: int, its: Held, start: int) -> int | None:
    """A width never measured here that should be tried soon, classic decode first."""
    measured = table.widths(bucket)
    if 1 not in measured:
        return 1 if its.holder != 1 else None
    fresh = [width for width in arms.within(2) if width not in measured]
    if not fresh:
        return None
    best = max(fresh, key=lambda width: _guessed(table, bucket, its, width))
    guess = _guessed(table, bucket, its, best)
    if guess:
        better = guess > (1 + MARGIN) * table.rate(bucket, its.tokens, its.holder)
        return best if better else None
    # Classic decode is the only cost that is known anywhere.
    return start if start in fresh else first_step(its.holder, fresh, lambda w: its.tokens[w - 1])


def _guessed(table: LoadTable, bucket: int, its: Held, width: int) -> float:
    return worth(its.tokens, width, table.estimate(bucket, width))
