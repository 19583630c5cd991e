"""The width of rounds of several rows: the one with the most tokens of all rows per second.

Pure and deterministic. One object per pairing and representation; it outlives requests and
processes (`LoadWidths.to_json`). A verify feeds rows times the widest block, so all rows that
speculate share one width: the choice is one width for the whole round.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.load_table import MOST_ROWS, TOLL, LoadTable, bucket_of, worth
from mlxcel.decide.load_trial import MAX_WAIT, WAIT, WARM_UP, Held, Trial, candidate, promising
from mlxcel.decide.verdict import parse_json
from mlxcel.decide.width_arms import WidthArms
from mlxcel.decide.width_challenge import ABORT_RATIO, MARGIN
from mlxcel.errors import LoadError

__all__ = ["LOAD_VERSION", "LoadWidths"]

LOAD_VERSION = 1
"""Of the JSON form."""

TRUST = 4
"""Counted rounds from which a width may be held on its own seconds."""

TRIAL_ROUNDS = 6
"""Counted rounds of a trial. Rounds of many rows are alike, and tokens are known from all
rounds, so fewer do than for a single row."""

ABORT_ROUNDS = 3
"""Counted rounds after which a hopeless trial ends."""

STUCK = 24
"""Rounds of a trial, counted or not, after which it ends: their times could not be told."""

SHARE = 0.02
"""Share of all measured time that trials may lose against the width that is held."""

ALLOWANCE = 4.0
"""What they may lose besides, in rounds, for each row count that has been met."""


class LoadWidths:
    """Chooses widths for rounds of several rows and learns what they cost.

    Parameters
    ----------
    widest : int
        Largest width.
    start : int
        Width that is tried first.
    open : sequence of int, optional
        Widths that may run from the beginning, besides 1; all by default.

    Attributes
    ----------
    arms : WidthArms
        Which widths may run; changed by `allow` and `exclude`.
    table : LoadTable
        Seconds.
    waking : int
        Trials begun while classic decode was held: what is known of acceptance was old then.

    Notes
    -----
    A width is held only on its own measured seconds at this row count; estimates from
    neighbours choose what is tried, and what a row count never met begins with. Tokens are
    the caller's, from the recent acceptance of the rows that run, so rows with other texts
    change the width at once where its seconds are known.

    Not thread-safe.
    """

    def __init__(self, widest: int, start: int, *, open: Sequence[int] | None = None) -> None:
        widths = range(1, widest + 1)
        self.arms = WidthArms(widths, widths if open is None else [1, *open])
        self.table = LoadTable()
        self.waking = 0
        self._start = start
        self._rows: dict[int, Held] = {}
        self._seconds = 0.0
        self._lost = 0.0

    # -- choosing ---------------------------------------------------------------------

    def choose(self, rows: int, tokens: Sequence[float], least: int = 1, *, joining: int) -> int:
        """Width of the next round, which is counted as one of a trial if it is one.

        Parameters
        ----------
        rows : int
            Rows of the round.
        tokens : sequence of float
            Tokens of all rows expected by width, see `round_tokens`. The same object may be
            given again while nothing has changed.
        least : int
            Largest width that a row insists on; 1 if none does.
        joining : int
            Requests whose prompts are being read or wait for that, and which will run beside
            these. While there are none the round has a time of its own and a width may be tried.
        """
        width = self.peek(rows, tokens, least, joining=joining)
        trial = self._rows[bucket_of(rows)].trial
        if trial is not None and width == trial.width and not joining and least == 1:
            trial.ran += 1
        return width

    def peek(self, rows: int, tokens: Sequence[float], least: int = 1, *, joining: int) -> int:
        """What `choose` would choose, without counting it."""
        bucket = bucket_of(rows)
        its = self._known(bucket, tokens)
        if tokens[-1] <= tokens[0]:
            return least  # nobody speculates but those who insist
        if least > 1:
            return self._among(bucket, tokens, least)
        if its.seen != its.rounds or its.tokens is not tokens:
            its.seen, its.tokens = its.rounds, tokens
            self._consider(bucket, its)
        if its.trial is not None and its.trial.ran >= STUCK:
            self._end(bucket, its, its.trial)
        if not joining:
            return its.holder if its.trial is None else its.trial.width
        # Beside a prompt being read: that waits for the round too, so no width on a guess.
        if its.holder == 1 or self.table.counted(bucket, its.holder) < TRUST:
            return 1
        return its.holder if self._pays_beside(rows, tokens, its.holder, joining) else 1

    def _pays_beside(self, rows: int, tokens: Sequence[float], width: int, joining: int) -> bool:
        """Whether the tokens that drafting adds now are cheaper than when more rows run.

        A round between two chunks of a prompt keeps all that wait from running. What it gives
        beyond a classic round is worth its further seconds only if no fewer tokens would come of
        them once those rows take part.
        """
        table, bucket, more = self.table, bucket_of(rows), rows + joining
        longer = TOLL * table.seconds(bucket, width) - table.estimate(bucket, 1)
        then = [each * more / rows for each in tokens]
        later = bucket_of(more)
        best = max(worth(then, w, table.estimate(later, w)) for w in (1, *self.arms.within(2)))
        return tokens[width - 1] - tokens[0] >= best * longer

    def wants(self, rows: int) -> bool:
        """Whether a row that comes as the last of so many should be able to speculate."""
        its = self._rows.get(bucket_of(rows))
        return its is None or its.holder > 1 or its.rounds + WAIT >= its.due

    @property
    def holders(self) -> dict[int, int]:
        """Width held by row count."""
        return {rows: its.holder for rows, its in sorted(self._rows.items())}

    def held(self, rows: int) -> int:
        """Width that is held at a row count."""
        its = self._rows.get(bucket_of(rows))
        return 1 if its is None else its.holder

    def _known(self, bucket: int, tokens: Sequence[float]) -> Held:
        its = self._rows.get(bucket)
        if its is None:
            its = self._rows[bucket] = Held(self._guess(bucket, tokens))
        elif its.holder not in self.arms:
            its.holder = self._guess(bucket, tokens)
        return its

    def _guess(self, bucket: int, tokens: Sequence[float]) -> int:
        """What a row count begins with: the best of its neighbour's widths, else classic decode.

        Beginning with a width that drafts would have to be paid at every row count on the way up.
        """
        near = self.table.nearest(bucket)
        widths = [] if near is None else self.table.widths(near)
        known = [width for width in widths if width in self.arms]
        if near is None or not known:
            return 1
        return max(known, key=lambda width: self.table.rate(near, tokens, width))

    def _among(self, bucket: int, tokens: Sequence[float], least: int) -> int:
        """Best measured width from what a row insists on; that one runs if in doubt."""
        table, held = self.table, self.table.rate(bucket, tokens, least)
        widths = [w for w in table.widths(bucket) if w > least and w in self.arms]
        best = max(widths, key=lambda w: table.rate(bucket, tokens, w), default=least)
        better = table.rate(bucket, tokens, best) > (1 + MARGIN) * held > 0
        return best if better else least

    # -- learning ---------------------------------------------------------------------

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Take in a round of several rows that has been read.

        Parameters
        ----------
        rows, width : int
            Its rows, and the width that was chosen for it.
        seconds : float
            Its wall time.
        """
        bucket = bucket_of(rows)
        if width not in self.arms.widths or not self.table.observe(bucket, width, seconds):
            return
        self._seconds += seconds
        its = self._rows.get(bucket)
        if its is None:
            return
        its.rounds += 1
        if its.trial is not None and its.trial.width == width:
            its.trial.counted += 1
            its.trial.seconds += seconds

    def allow(self, width: int) -> None:
        """Open a width."""
        self.arms.allow(width)

    def exclude(self, width: int, reason: str) -> None:
        """Never choose a width from now on; the reason is shown."""
        self.arms.exclude(width, reason)
        for its in self._rows.values():
            if its.trial is not None and its.trial.width not in self.arms:
                its.trial = None
            if its.holder not in self.arms:
                its.holder = 1

    def _consider(self, bucket: int, its: Held) -> None:
        """End a trial, hold what is best by measurement, begin a trial."""
        trial, rate = its.trial, functools.partial(self.table.rate, bucket, its.tokens)
        ours = rate(its.holder)
        if trial is not None:
            theirs = rate(trial.width)
            hopeless = trial.counted >= ABORT_ROUNDS and theirs < ABORT_RATIO * ours
            if not hopeless and trial.counted < TRIAL_ROUNDS:
                return
            self._end(bucket, its, trial)
        trusted = [
            width
            for width in self.table.widths(bucket)
            if width in self.arms and self.table.counted(bucket, width) >= TRUST
        ]
        best = max(trusted, key=rate, default=its.holder)
        # Of two equals classic decode is held: to speculate must be worth the margin.
        if ours and best != its.holder and rate(best) > ours * (1 if best == 1 else 1 + MARGIN):
            its.hold(best)
        elif ours and its.rounds >= its.due:
            self._begin(bucket, its)

    def _end(self, bucket: int, its: Held, trial: Trial) -> None:
        ours = self.table.rate(bucket, its.tokens, its.holder)
        theirs = self.table.rate(bucket, its.tokens, trial.width)
        if trial.counted and ours:
            per_round = max(trial.seconds * (1 - theirs / ours), 0.0) / trial.counted
            self._lost += per_round * max(trial.ran, trial.counted)
        its.trial = None
        its.losses += 1
        if promising(self.table, self.arms, bucket, its, self._start) is None:
            its.due = its.rounds + its.wait
            its.wait = min(2 * its.wait, MAX_WAIT)
        else:
            its.due = its.rounds + WARM_UP

    def _begin(self, bucket: int, its: Held) -> None:
        allowed = SHARE * self._seconds
        allowed += ALLOWANCE * len(self._rows) * self.table.seconds(bucket, its.holder)
        width = None
        if self._lost < allowed:
            width = candidate(self.table, self.arms, bucket, its, self._start)
        if width is None:
            its.due = its.rounds + WARM_UP
            return
        its.trial = Trial(width)
        self.waking += its.holder == 1

    # -- reporting and storing ----------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What is held by row count, what is known by cell, and what trying has cost."""
        cells = self.table.snapshot()
        for cell in cells:
            its = self._rows.get(cell["rows"])
            tokens = its.tokens[cell["width"] - 1] if its is not None and its.tokens else None
            cell["tokens_per_second"] = None if tokens is None else tokens / cell["seconds"]
        return {
            "holders": self.holders,
            "trials": {r: i.trial.width for r, i in sorted(self._rows.items()) if i.trial},
            "open": list(self.arms.within(1)),
            "excluded": dict(self.arms.excluded),
            "lost_share": self._lost / self._seconds if self._seconds else 0.0,
            "cells": cells,
        }

    def to_json(self, key: str) -> str:
        """JSON text of what has been learnt, for the pairing with this key."""
        rows = [
            {"rows": rows, "holder": its.holder, "wait": its.wait}
            for rows, its in sorted(self._rows.items())
        ]
        record = {"version": LOAD_VERSION, "key": key, "rows": rows, "table": self.table.state()}
        return json.dumps(record, sort_keys=True, allow_nan=False)

    def restore(self, text: str, key: str) -> None:
        """Take over what was learnt for the pairing with this key.

        Raises
        ------
        LoadError
            Not JSON, another version or key, or a bad field. Nothing has changed; log it
            and learn anew.
        """
        fields = Fields(parse_json(text, "load widths"), "load widths")
        version = fields.whole("version", 0, 10**6)
        if version != LOAD_VERSION:
            raise LoadError(f"load widths: version {version}, not {LOAD_VERSION}", param="version")
        if fields.text("key") != key:
            raise LoadError("load widths: learnt for another pairing", param="key")
        rows: dict[int, Held] = {}
        for item in fields.items("rows"):
            at = item.whole("rows", 2, MOST_ROWS)
            holder, wait = item.whole("holder", 1, 1024), item.whole("wait", WAIT, MAX_WAIT)
            item.close()
            rows[at] = Held(holder if holder in self.arms else 1, due=wait, wait=wait)
        table = fields.inner("table")
        fields.close()
        self.table.load(table)
        self._rows = rows
