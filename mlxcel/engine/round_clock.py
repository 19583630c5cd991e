"""Wall time of single rounds, as far as it can be told from outside."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel._fast import FINISH_STOP
from mlxcel.engine.plan import Plan
from mlxcel.engine.scheduler import Settled

__all__ = ["RoundClock"]


class RoundClock:
    """Gives each request's meter the times of the rounds it ran alone in.

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
    ) -> None:
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
        """
        before, self._last = self._last, self._clock()
        own = serial if after is None else after.widths == plan.widths
        if before is not None and own and len(plan.slots) == 1 and rows:
            row, seconds = rows[0], self._last - before
            cut = row.finish == FINISH_STOP
            row.state.meter.add(plan.widths[0], row.count, seconds, cut=cut)
