"""Tokens that a round of several rows is expected to emit, from each row's recent acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxcel.decide.width_model import AcceptanceCurve

__all__ = ["LoadTokens", "round_tokens"]

ROW_HALF_LIFE = 48.0
"""Rounds after which a round of a row counts half."""

ROW_PRIOR = 2.0
"""Rounds that the pairing's acceptance counts against a row's own: more would speak for
speculation long after a text has turned bad."""

PAIRING_HALF_LIFE = 256.0
"""The same of the rounds of all rows, which a new row begins with."""

STALE_ROUNDS = 2.0
"""What acceptance from before a parked time counts when a width is tried again."""

REFRESH = 4
"""Rounds after which acceptance is worked out anew."""


def round_tokens(
    acceptance: Iterable[Sequence[float]], classic: int, widest: int
) -> tuple[float, ...]:
    """Tokens of a round of all rows by its width.

    Parameters
    ----------
    acceptance : iterable of sequence of float
        Of each row that may speculate: acceptance by draft position, given that all before it
        were accepted. A row drafts no more than this has positions.
    classic : int
        Rows that may not: one token each.
    widest : int
        Largest width, tokens.

    Returns
    -------
    tuple of float
        At ``width - 1``, for widths 1 to ``widest``.
    """
    found = [0.0] * widest
    rows = classic
    for row in acceptance:
        rows += 1
        reached, total = 1.0, 0.0
        for at in range(widest - 1):
            if at < len(row):
                reached *= row[at]
                total += reached
            found[at + 1] += total
    return tuple(rows + drafts for drafts in found)


class LoadTokens:
    """Acceptance of rows, and of the pairing for rows that begin.

    Acceptance by position is taken to be the same for every width, which it is for drafters
    that propose one token after the other.

    Parameters
    ----------
    widest : int
        Largest width, tokens.
    """

    def __init__(self, widest: int) -> None:
        self.pairing = AcceptanceCurve(widest - 1, PAIRING_HALF_LIFE)
        self._widest = widest
        self._asked: tuple[object, ...] = ()
        self._tokens: tuple[float, ...] = ()
        self._fresh = 0

    def row(self) -> AcceptanceCurve:
        """A row that begins."""
        return AcceptanceCurve(self._widest - 1, ROW_HALF_LIFE, worth=ROW_PRIOR)

    def observe(self, row: AcceptanceCurve, width: int, emitted: int) -> None:
        """Take in a row's part of a round: ``emitted`` tokens of the ``width`` it might have had.

        A drafter that proposes less than it may counts as wrong from there on: what matters is
        what a width brings.
        """
        if width > 1:
            row.observe(width, emitted)
            self.pairing.observe(width, emitted)

    def stale(self, rows: Iterable[AcceptanceCurve]) -> None:
        """What is known of these rows is of another time."""
        for row in rows:
            row.age(STALE_ROUNDS)
        self._asked = ()

    def round_ended(self) -> None:
        """A round has been observed."""
        self._fresh += 1

    def of(
        self, rows: Sequence[AcceptanceCurve], limits: Sequence[int], classic: int
    ) -> tuple[float, ...]:
        """Expected tokens of a round by its width, see `round_tokens`.

        Parameters
        ----------
        rows : sequence of AcceptanceCurve
            Those that may speculate.
        limits : sequence of int
            Widest block of each.
        classic : int
            Rows that may not.

        Returns
        -------
        tuple of float
            The same object while nothing has changed by much.
        """
        asked = (*map(id, rows), *limits, classic)
        if asked != self._asked or self._fresh >= REFRESH:
            pairing, known = self.pairing.acceptance(), []
            for row, limit in zip(rows, limits, strict=True):
                row.expect(pairing)
                known.append(row.acceptance()[: limit - 1])
            self._tokens = round_tokens(known, classic, self._widest)
            self._asked, self._fresh = asked, 0
        return self._tokens
