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
from mlxcel.decide.width_arms import WidthArms
from mlxcel.decide.width_challenge import MARGIN, Challenge, Costs, first_step
from mlxcel.decide.width_model import WidthPrior
from mlxcel.decide.width_rates import WidthRates
from mlxcel.errors import ConfigError, LoadError

__all__ = ["WIDTH_VERSION", "WidthController"]

WIDTH_VERSION = 1
"""Of the JSON form."""

WARM_UP = 8
"""Counted rounds before the first challenge, and between challenges in a hurry."""

URGENT_EVERY = 8
"""Rounds between two looks for an urgent challenger, so that most rounds cost no search."""

URGENT = 1.10
"""A measured width that is faster by this factor now challenges without waiting."""

WAIT = 32
"""Rounds between challenges; doubled by each lost one."""

MAX_WAIT = 1024
"""Longest wait, rounds."""

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
    open : sequence of int, optional
        Arms that may run from the beginning; all by default. See `arms`.
    series : int
        Rounds of one width in a row during a challenge.

    Attributes
    ----------
    holder : int
        Width held now; 1 is parked.
    rounds : int
        Counted in this process.
    arms : WidthArms
        Which widths may run; changed by `allow` and `exclude`.

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
        open: Sequence[int] | None = None,
        series: int = 1,
    ) -> None:
        arms = sorted({1, *(range(1, max_width + 1) if widths is None else widths)})
        if arms[0] < 1 or arms[-1] > max_width or start not in arms:
            raise ConfigError(
                f"widths {arms} must be 1 to max_width {max_width} and hold the start {start}"
            )
        self.arms = WidthArms(arms, arms if open is None else [1, start, *open])
        self.holder = start
        self._rates = WidthRates(arms, prior or WidthPrior(), sequential)
        self._home = start if start > 1 else arms[-1]  # where to wake
        self.rounds = 0
        self._costs = Costs()
        self._ended = 0  # round in which the last challenge ended
        self._due = WARM_UP
        self._wait = WAIT
        self._losses = 0  # challenges lost since one was won
        self._series = series
        self._least = 1
        self._trial: Challenge | None = None

    @property
    def challenger(self) -> int | None:
        """Width that is being tried in turn with the holder, if there is one."""
        return None if self._trial is None else self._trial.width

    # -- choosing ---------------------------------------------------------------------

    def choose(self, limit: int, least: int = 1) -> int:
        """Width of the next round.

        Parameters
        ----------
        limit : int
            Largest width the round may have: the tokens left in the budget.
        least : int
            Smallest width wanted; above 1 this request is not parked.

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
        self._least = least
        if self._trial is not None:
            if self._trial.stuck:
                self._end(self._trial, False)
            elif self._trial.has_turn(least, limit):
                return self._trial.width
        return self.held(limit, least)

    def held(self, limit: int, least: int = 1) -> int:
        """Width of a round that tries nothing; parameters as for `choose`.

        Where the holder is too wide, the fastest open width that fits runs, or the limit itself
        if nobody has said that it must not: the tail of a budget is clamped, as it always was.
        """
        holder = self.holder if self.holder >= least else self._home
        if holder <= limit:
            return holder
        fitting = [width for width in self.arms.within(least) if width <= limit]
        if self.arms.untried(limit) or not fitting:
            return limit
        known = [width for width in fitting if self._rates.measured(width)]
        return max(known, key=self._rates.rate) if fitting[-1] in known else fitting[-1]

    def allow(self, width: int) -> None:
        """Open a width; it is tried soon if it promises anything."""
        self.arms.allow(width)
        self._due = min(self._due, self.rounds + WARM_UP)

    def exclude(self, width: int, reason: str) -> None:
        """Never choose a width from now on; the reason is shown."""
        self.arms.exclude(width, reason)
        self._leave_closed()

    def _leave_closed(self) -> None:
        """Hold and try nothing that may not run."""
        if self._trial is not None and self._trial.width not in self.arms:
            self._trial = None
        blocks = self.arms.within(2)
        if self._home not in self.arms:
            self._home = min(blocks, key=lambda width: abs(width - self._home), default=1)
        if self.holder not in self.arms:
            self.holder = self._home

    # -- learning ---------------------------------------------------------------------

    def observe(self, width: int, emitted: int, seconds: float) -> None:
        """Take in a round that has been read.

        It is booked under the width it had, never under the one that was chosen: budgets and
        drafters clamp. The first round of each width in a process may compile and is left
        out, and so is one of a width that is no arm.

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
        self.rounds += 1
        self._costs.seconds += seconds
        trial = self._trial
        if trial is not None:
            if width == trial.width:
                ours, theirs = self._rates.rate(self.holder), self._rates.rate(width)
                won = trial.observe(emitted, seconds, ours, theirs)
                if won is not None:
                    self._end(trial, won)
            return
        candidate = None if self.rounds % URGENT_EVERY else self._urgent()
        if candidate is None and self.rounds >= self._due:
            candidate = self._candidate()
            self._due = self.rounds + WARM_UP
        if candidate is not None and self._costs.allow_more(self._rates.speed):
            self._challenge(candidate)

    def _end(self, trial: Challenge, won: bool) -> None:
        self._costs.lost += trial.lost
        if won:
            self.holder = trial.width
            self._home = self.holder if self.holder > 1 else self._home
        self._wait = WAIT if won else min(2 * self._wait, MAX_WAIT)
        self._losses = 0 if won else self._losses + 1
        self._ended = self.rounds
        self._due = self.rounds + (WARM_UP if self._promising() else self._wait)
        self._trial = None

    # -- challenging ------------------------------------------------------------------

    def _challenge(self, candidate: int) -> None:
        if self.holder == 1:
            self._rates.distrust_acceptance(STALE_ROUNDS)
        self._trial = Challenge(candidate, self._series, waking=self.holder == 1)

    def _urgent(self) -> int | None:
        """A measured width that is much faster by what is known now."""
        if self.holder == 1 or self.rounds < self._ended + WARM_UP:
            return None
        best = self._best_other(measured=True)
        if best is None or self._rates.rate(best) <= URGENT * self._rates.rate(self.holder):
            return None
        return best

    def _promising(self) -> bool:
        """Whether a width never tried should be faster, or classic was never measured."""
        if self._least == 1 and not self._rates.measured(1):
            return True
        best = self._best_other()
        if best is None or self._rates.rounds(best):
            return False
        return self._rates.rate(best) > (1 + MARGIN) * self._rates.rate(self.holder)

    def _best_other(self, *, measured: bool = False) -> int | None:
        rates = self._rates
        widths = self.arms.within(self._least)
        others = [w for w in widths if w != self.holder and (rates.measured(w) or not measured)]
        best = max(others, key=rates.rate, default=None)
        if best is None or rates.rate(best) or not rates.rate(self.holder):
            return best
        return first_step(self.holder, others, rates.emitted)

    def _candidate(self) -> int | None:
        """Who challenges: classic first, then by prediction, in turn with a neighbour."""
        blocks = self.arms.within(2)
        if not blocks:
            return None
        if self.holder == 1:
            return self._home if self._losses % 2 == 0 else blocks[0]
        if self._least == 1 and not self._rates.measured(1):
            return 1
        if self._losses % 2 == 0 or self._promising():
            return self._best_other()
        widths = self.arms.within(self._least)
        at = widths.index(self.holder)
        near = {widths[0], *widths[max(at - 1, 0) : at + 2]}
        return min(sorted(near - {self.holder}), key=self._rates.rounds, default=None)

    # -- reporting and storing ----------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What is held, what is known by width, and what exploring has cost."""
        return {
            "width": self.holder,
            "parked": self.holder == 1,
            "challenger": self.challenger,
            "open": list(self.arms.within(1)),
            "excluded": dict(self.arms.excluded),
            "rounds": self.rounds,
            "lost_share": self._costs.share,
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
        self._due = self.rounds + wait
        self._trial = None
        self._leave_closed()
