"""Wall time of single rounds, as far as it can be told from outside."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel._fast import FINISH_STOP
from mlxcel.engine.plan import Plan
from mlxcel.engine.scheduler import Settled

__all__ = ["RoundClock"]


class RoundClock:
    """Gives each request's meter the times of the rounds it ran alone in, and tells all others.

    A round's time is that from the end of the round before to its own end. Where rounds are
    pipelined the next one is in flight by then, and on some backends its work falls into this
    time (on MLX's CPU backend all of it): only before its like does the time belong to the round.
    What came before it does not matter. So a width that is tried runs in short series, of which
    all rounds but the last are timed; see ``docs/decisions/0008-width-controller.md``.

    Parameters
    ----------
    clock : callable
        Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: float | None = None

    def disturb(self) -> None:
        """Something else happens before the next round ends: it will have no time."""
        self._last = None

    def joined(self, *, serial: bool) -> None:
        """A row has joined; where rounds wait for each other, the first one begins now."""
        if serial:
            self._last = self._clock()

    def settled(
        self, plan: Plan, rows: list[Settled], after: Plan | None, *, serial: bool
    ) -> float | None:
        """A round has ended.

        Parameters
        ----------
        plan : Plan
            The round.
        rows : list of Settled
            What it gave.
        after : Plan or None
            The round in flight behind it.
        serial : bool
            Whether rounds wait for each other.

        Returns
        -------
        float or None
            Seconds of the round, if it has a time of its own.
        """
        before, self._last = self._last, self._clock()
        if before is None or not _own(plan, after, serial):
            return None
        seconds = self._last - before
        if len(plan.slots) == 1 and rows and not plan.load:
            row = rows[0]
            cut = row.finish == FINISH_STOP
            row.state.meter.add(plan.widths[0], row.count, seconds, cut=cut)
        return seconds


def _own(plan: Plan, after: Plan | None, serial: bool) -> bool:
    """Whether the time since the end of the round before is this round's.

    Rounds of several rows are pipelined or not by what the next one does. Read with nothing
    behind it, only one that drafts and that began with nothing in flight was by itself. One
    that began so and is read with another behind it has the work of both in its time.
    """
    if after is None:
        return serial and (not plan.load or (plan.first and plan.load > 1))
    if plan.first:
        return False
    if not plan.load:
        return after.widths == plan.widths
    alike = after.load == plan.load and max(after.allowed) == max(plan.allowed)
    return alike and after.slots == plan.slots
