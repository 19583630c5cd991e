"""Widths of rounds of several rows: which may run, what rounds cost, and what is remembered.

Bursts of one row are decided on by gate and policy and steered by `mlxcel.engine.steering`. As
soon as a second row runs, the measured cost of rounds by rows and width decides, for all rows
whose requests leave it open (``docs/decisions/0010-load-widths.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxcel._fast import FINISH_STOP
from mlxcel.decide.exactness import VetoState
from mlxcel.decide.load_tokens import LoadTokens
from mlxcel.decide.load_width import LoadWidths
from mlxcel.decide.verdict import VerdictKey
from mlxcel.decide.width_model import AcceptanceCurve
from mlxcel.engine.plan import Plan
from mlxcel.engine.verdict_store import VerdictStore

if TYPE_CHECKING:
    from mlxcel.engine.scheduler import Settled
    from mlxcel.engine.sequence import RequestState

__all__ = ["FOLDER", "LoadRow", "LoadSteering"]

FOLDER = "mtp-load"
"""Of the cache folder: what rounds of several rows cost, beside the width controllers' memories."""

SAVE_ROUNDS = 256
"""Measured rounds after which the memory is written even if the same widths are held."""


@dataclass(slots=True)
class LoadRow:
    """A row that may speculate beside others.

    Attributes
    ----------
    curve : AcceptanceCurve
        Its own recent acceptance.
    insists : int
        Width that its request asked for and gets; 0 where the table may choose.
    rounds, parked : int
        Settled rounds beside other rows, and those of them without drafts for anybody.
    beside : int
        Most rows of one of them.
    """

    curve: AcceptanceCurve
    insists: int = 0
    rounds: int = 0
    parked: int = 0
    beside: int = 0


class LoadSteering:
    """Owns the table of one pairing; not thread-safe.

    Parameters
    ----------
    start : int
        The pairing's width.
    key : VerdictKey
        What the memory is valid for; its width is the widest block.
    store : VerdictStore
        Where it is kept.
    known : callable
        What has been found of a width's exactness, ``None`` if nothing; it must not probe.
    serial : bool
        Whether rounds that draft wait for the one before: a drafter on the host.

    Attributes
    ----------
    widths : LoadWidths
        Chooses. Only widths found exact are open.
    """

    def __init__(
        self,
        start: int,
        key: VerdictKey,
        store: VerdictStore,
        known: Callable[[int], VetoState | None],
        *,
        serial: bool,
    ) -> None:
        self.widths = LoadWidths(key.width, start, open=())
        self._tokens = LoadTokens(key.width)
        self._start = start
        self._widest = key.width
        self._key = key
        self._store = store
        self._serial = serial
        self._waking = 0
        for width in range(2, key.width + 1):
            found = known(width)
            if found is not None:
                self.judged(width, found.reason)
        store.restore(key, lambda text: self.widths.restore(text, key.digest))
        self._saved = self._learnt()

    def judged(self, width: int, veto: str) -> None:
        """A width has been probed; an empty ``veto`` lets it run."""
        if veto:
            self.widths.exclude(width, veto)
        else:
            self.widths.allow(width)

    def wanted(self) -> int | None:
        """The width to be probed at rest: the pairing's, once several rows have run."""
        met = bool(self.widths.table.rounds)
        return self._start if met and self.widths.arms.untried(self._start) else None

    def wants(self, beside: int) -> bool:
        """Whether a request that comes to so many others should have its drafter prepared.

        Not where no width is known to be exact, nor where the table is so sure of classic
        decode that it will try nothing soon.
        """
        return len(self.widths.arms.within(1)) > 1 and self.widths.wants(beside + 1)

    def row(self, insists: int = 0) -> LoadRow:
        """A request that begins and whose drafter is prepared.

        Parameters
        ----------
        insists : int
            Width that it must have, found exact; 0 where the table may choose.
        """
        return LoadRow(self._tokens.row(), insists)

    def peek(self, running: Mapping[int, RequestState], *, joining: int) -> int:
        """Width of the next round, without counting it; parameters as for `choose`."""
        rows, tokens, least = self._asked(running)
        return self.widths.peek(rows, tokens, least, joining=joining)

    def choose(
        self, running: Mapping[int, RequestState], *, joining: int, in_flight: int
    ) -> tuple[int, dict[int, int]]:
        """Width of the next round and of each row in it.

        Parameters
        ----------
        running : mapping of int to RequestState
            All rows by slot, at least two.
        joining : int
            Requests that will run beside these, see `LoadWidths.choose`.
        in_flight : int
            Rounds that have not been read. A drafter on the host must not be asked behind
            one: what it proposes would be of yesterday.

        Returns
        -------
        int
            The widest.
        dict of int to int
            Width by slot, before budgets.
        """
        rows, tokens, least = self._asked(running)
        width = self.widths.choose(rows, tokens, least, joining=joining)
        if self._serial and in_flight and least == 1:
            width = 1
        if self.widths.waking != self._waking:
            self._waking = self.widths.waking
            self._tokens.stale(s.load.curve for s in running.values() if s.load is not None)
        return width, {slot: self._of(state, width) for slot, state in running.items()}

    def _of(self, state: RequestState, width: int) -> int:
        """A row's part of a round: those that insist keep to what they asked for."""
        return 1 if state.load is None else state.load.insists or width

    def _asked(self, running: Mapping[int, RequestState]) -> tuple[int, tuple[float, ...], int]:
        """Rows, their expected tokens by width, and the width that one of them insists on."""
        loads = [state.load for state in running.values() if state.load is not None]
        tokens = self._tokens.of(
            [load.curve for load in loads],
            [load.insists or self._widest for load in loads],
            len(running) - len(loads),
        )
        return len(running), tokens, max((load.insists for load in loads), default=0) or 1

    def settled(self, plan: Plan, rows: list[Settled], seconds: float | None) -> None:
        """Learn from a round whose width was chosen here.

        Parameters
        ----------
        plan : Plan
            The round.
        rows : list of Settled
            What it gave.
        seconds : float or None
            Its wall time, if it has one of its own.
        """
        for row in rows:
            load = row.state.load
            if load is None:
                continue
            load.rounds += 1
            load.parked += plan.load == 1
            load.beside = max(load.beside, len(plan.slots))
            if row.finish != FINISH_STOP:  # what it would have emitted nobody knows
                self._tokens.observe(load.curve, plan.allowed[row.row], row.count)
        self._tokens.round_ended()
        # A round that budgets clamped is no round of the chosen width.
        if seconds is not None and len(plan.slots) > 1 and max(plan.allowed) == plan.load:
            self.widths.observe(len(plan.slots), plan.load, seconds)

    def _learnt(self) -> tuple[object, int]:
        return self.widths.holders, self.widths.table.rounds // SAVE_ROUNDS

    def save(self) -> None:
        """Write the memory, if it has changed by much."""
        learnt = self._learnt()
        if learnt != self._saved:
            self._saved = learnt
            self._store.write(self._key, self.widths.to_json(self._key.digest))

    def snapshot(self) -> dict[str, Any]:
        """See `LoadWidths.snapshot`; with the pairing's acceptance by draft position."""
        return self.widths.snapshot() | {"acceptance": self._tokens.pairing.acceptance()}
