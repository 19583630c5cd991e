"""The width controller: the block width with the most tokens per measured second.

Pure and deterministic. One object per pairing, representation and number of rows; it
outlives requests and processes (`WidthController.to_json`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.verdict import parse_json
from mlxcel.decide.width_model import WidthPrior
from mlxcel.decide.width_rates import WidthRates
from mlxcel.errors import ConfigError, LoadError

__all__ = ["WIDTH_VERSION", "WidthController"]

WIDTH_VERSION = 1
"""Of the JSON form."""

WARM_UP = 8
"""Counted rounds before the first challenge, and between challenges in a hurry."""

CHALLENGE_ROUNDS = 8
"""Rounds of a challenger, in turn with the holder's so that both see the same text."""

WAKE_ROUNDS = 12
"""The same from width 1, whose rounds bring no acceptance to compare with."""

ABORT_ROUNDS = 4
"""Rounds after which a hopeless challenge ends."""

ABORT_RATIO = 0.65
"""Share of the holder's rate below which a challenge is hopeless."""

MARGIN = 0.02
"""What a challenger must be faster by: below, a switch is noise."""

URGENT = 1.10
"""A measured width that is faster by this factor now challenges without waiting."""

WAIT = 32
"""Rounds between challenges; doubled by each lost one."""

MAX_WAIT = 1024
"""Longest wait, rounds."""

PROBE_SHARE = 0.03
"""Share of all measured time that challenges may lose against the holder."""

PROBE_ALLOWANCE = 24.0
"""What they may lose besides, in rounds of the holder, so that a fresh host can explore."""

STUCK = 64
"""Rounds that a challenger may be too wide for the budget before it gives up."""

STALE_ROUNDS = 2.0
"""What acceptance from before a parked time counts when the burst is tried again."""


class WidthController:
    """Chooses widths and learns from rounds.

    Width 1 is parked: classic decode. It is an arm like any other, measured by its own
    seconds; challenges with growing waits try to wake the burst.

    Parameters
    ----------
    max_width : int
        Widest block.
    start : int
        Width before anything is known, the drafter's own.
    widths : sequence of int, optional
        Arms; all from 1 to ``max_width`` by default. Width 1 is always one.
    prior : WidthPrior, optional
        Acceptance by position and an affine cost.
    sequential : bool
        Whether the drafter proposes one token after the other, so that acceptance by
        position is the same for every width. False for drafters of whole blocks.

    Raises
    ------
    ConfigError
        Widths outside 1 to ``max_width``, or a start that is none of them.

    Notes
    -----
    Which estimator decides: a width is adopted only after rounds of its own, on its own
    **measured seconds**; the affine fit (of measured widths, else the prior) only chooses
    which width is tried next. Its tokens per round come from the acceptance **by position
    of all rounds** when the drafter is sequential, because two windows of 32 rounds differ
    by 11 % by luck alone, five times the margin; else from its own rounds. A prior counts
    as four rounds and is soon outvoted.

    Not thread-safe.
    """

    def __init__(
        self,
        max_width: int,
        start: int,
        *,
        widths: Sequence[int] | None = None,
        prior: WidthPrior | None = None,
        sequential: bool = True,
    ) -> None:
        arms = sorted({1, *(range(1, max_width + 1) if widths is None else widths)})
        if arms[0] < 1 or arms[-1] > max_width or start not in arms:
            raise ConfigError(
                f"widths {arms} must be 1 to max_width {max_width} and hold the start {start}"
            )
        self.holder = start
        self.challenger: int | None = None
        self._rates = WidthRates(arms, prior or WidthPrior(), sequential)
        self._home = start if start > 1 else arms[-1]  # where to wake
        self._rounds = 0
        self._seconds = 0.0
        self._lost = 0.0  # seconds that challenges have cost
        self._ended = 0  # round in which the last challenge ended
        self._due = WARM_UP
        self._wait = WAIT
        self._losses = 0  # challenges lost since one was won
        self._turn = False
        self._stuck = 0
        self._trial: list[float] = []  # seconds each round of the challenger lost

    # -- choosing ---------------------------------------------------------------------

    def choose(self, limit: int) -> int:
        """Width of the next round.

        Parameters
        ----------
        limit : int
            Largest width the round may have: the tokens left in the budget.

        Returns
        -------
        int
            At most ``limit``. Rounds may be chosen before earlier ones are observed.

        Raises
        ------
        ConfigError
            A limit below 1.
        """
        if limit < 1:
            raise ConfigError(f"width limit must be at least 1, got {limit!r}", param="limit")
        if self.challenger is not None:
            if self.challenger > limit:
                self._stuck += 1
                if self._stuck > STUCK:
                    self._end(False)
            else:
                self._turn = not self._turn
                if self._turn:
                    return self.challenger
        if self.holder <= limit:
            return self.holder
        fitting = [width for width in self._rates.widths if width <= limit]
        known = [width for width in fitting if self._rates.measured(width)]
        return max(known, key=self._rates.rate) if fitting[-1] in known else fitting[-1]

    # -- learning ---------------------------------------------------------------------

    def observe(self, width: int, emitted: int, seconds: float) -> None:
        """Take in a round that has been read.

        It is booked under the width it had, never under the one that was asked for: a
        round clamped by a budget or a drafter tells nothing of the arm that was chosen. The
        first round of each width in a process may compile and is left out, and so is one
        of a width that is no arm.

        Parameters
        ----------
        width : int
            The width the round really had.
        emitted : int
            Tokens it emitted, 1 to ``width``.
        seconds : float
            Wall time since the end of the round before it.
        """
        if not self._rates.observe(width, emitted, seconds):
            return
        self._rounds += 1
        self._seconds += seconds
        if self.challenger is not None:
            if width == self.challenger:
                self._judge(emitted, seconds)
            return
        candidate = self._urgent()
        if candidate is None and self._rounds >= self._due:
            candidate = self._candidate()
            self._due = self._rounds + WARM_UP
        if candidate is not None and self._affordable():
            self._challenge(candidate)

    def _judge(self, emitted: int, seconds: float) -> None:
        """A round of the challenger has been read."""
        assert self.challenger is not None
        ours, theirs = self._rates.rate(self.holder), self._rates.rate(self.challenger)
        self._trial.append(seconds - emitted / ours if ours else 0.0)
        if len(self._trial) >= ABORT_ROUNDS and theirs < ABORT_RATIO * ours:
            self._end(False)
        elif len(self._trial) >= (WAKE_ROUNDS if self.holder == 1 else CHALLENGE_ROUNDS):
            self._end(theirs > (1 + MARGIN) * ours > 0)

    def _end(self, won: bool) -> None:
        self._lost += max(sum(self._trial), 0.0)
        if won and self.challenger is not None:
            self.holder = self.challenger
            self._home = self.holder if self.holder > 1 else self._home
        self._wait = WAIT if won else min(2 * self._wait, MAX_WAIT)
        self._losses = 0 if won else self._losses + 1
        self._ended = self._rounds
        self._due = self._rounds + (WARM_UP if self._promising() else self._wait)
        self.challenger = None

    # -- challenging ------------------------------------------------------------------

    def _challenge(self, candidate: int) -> None:
        if self.holder == 1:
            self._rates.distrust_acceptance(STALE_ROUNDS)
        self.challenger, self._trial, self._turn, self._stuck = candidate, [], False, 0

    def _affordable(self) -> bool:
        allowance = PROBE_ALLOWANCE * self._rates.speed
        return self._lost < PROBE_SHARE * self._seconds + allowance

    def _urgent(self) -> int | None:
        """A measured width that is much faster by what is known now."""
        if self.holder == 1 or self._rounds < self._ended + WARM_UP:
            return None
        best = self._best_other(measured=True)
        if best is None or self._rates.rate(best) <= URGENT * self._rates.rate(self.holder):
            return None
        return best

    def _promising(self) -> bool:
        """Whether a width never tried should be faster, or classic was never measured."""
        if not self._rates.measured(1):
            return True
        best = self._best_other()
        if best is None or self._rates.rounds(best):
            return False
        return self._rates.rate(best) > (1 + MARGIN) * self._rates.rate(self.holder)

    def _best_other(self, *, measured: bool = False) -> int | None:
        rates = self._rates
        others = [
            width
            for width in rates.widths
            if width != self.holder and (rates.measured(width) or not measured)
        ]
        return max(others, key=rates.rate, default=None)

    def _candidate(self) -> int | None:
        """Who challenges: classic first, then by prediction, in turn with a neighbour."""
        widths = self._rates.widths
        if len(widths) == 1:
            return None
        if self.holder == 1:
            return self._home if self._losses % 2 == 0 else widths[1]
        if not self._rates.measured(1):
            return 1
        if self._losses % 2 == 0 or self._promising():
            return self._best_other()
        at = widths.index(self.holder)
        near = {1, *widths[at - 1 : at], *widths[at + 1 : at + 2]}
        return min(sorted(near), key=self._rates.rounds)

    # -- reporting and storing ----------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What is held, what is known by width, and what exploring has cost."""
        return {
            "width": self.holder,
            "parked": self.holder == 1,
            "challenger": self.challenger,
            "rounds": self._rounds,
            "lost_share": self._lost / self._seconds if self._seconds else 0.0,
            "acceptance": list(self._rates.acceptance()),
            "widths": self._rates.snapshot(),
        }

    def to_json(self, key: str) -> str:
        """JSON text of what has been learnt, for the pairing with this key."""
        record = {
            "version": WIDTH_VERSION,
            "key": key,
            "holder": self.holder,
            "home": self._home,
            "wait": self._wait,
            "rates": self._rates.state(),
        }
        return json.dumps(record, sort_keys=True, allow_nan=False)

    def restore(self, text: str, key: str) -> None:
        """Take over what was learnt for the pairing with this key.

        Raises
        ------
        LoadError
            Not JSON, another version, key or set of widths, or a bad field. Nothing has
            changed; log it and learn anew.
        """
        fields = Fields(parse_json(text, "widths"), "widths")
        version = fields.whole("version", 0, 10**6)
        if version != WIDTH_VERSION:
            raise LoadError(f"widths: version {version} is not {WIDTH_VERSION}", param="version")
        if fields.text("key") != key:
            raise LoadError("widths: learnt for another pairing", param="key")
        holder, home = (fields.whole(name, 1, 1024) for name in ("holder", "home"))
        wait = fields.whole("wait", WAIT, MAX_WAIT)
        if holder not in self._rates.widths or home not in self._rates.widths:
            raise LoadError(f"widths: {holder} and {home} must be of {list(self._rates.widths)}")
        rates = fields.inner("rates")
        fields.close()
        self._rates.load(rates)
        self.holder, self._home, self._wait = holder, home, wait
        self._due = self._rounds + wait
        self.challenger = None
