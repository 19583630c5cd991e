"""The engine: requests join and leave between rounds, rounds are pipelined.

A round is enqueued before the one before it is read: acceptance, the next bonus token
and the new lengths are computed on the device. The host is one round behind, which costs
one wasted round at the end of a request and nothing else. Only a drafter that works on
the host needs the last round first.

Not thread-safe: one thread loads the models, makes the engine and calls it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlxcel.config import Settings
from mlxcel.decide.rows import RowRule, rule_of
from mlxcel.engine.admission import new_state, park, report_burst
from mlxcel.engine.budget import Budget
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.governor import Governor
from mlxcel.engine.intake import Intake
from mlxcel.engine.metrics import Metrics
from mlxcel.engine.outbox import Outbox
from mlxcel.engine.plan import Plan
from mlxcel.engine.prefixes import Prefixes
from mlxcel.engine.round_clock import RoundClock
from mlxcel.engine.rows import Rows
from mlxcel.engine.scheduler import Scheduler, Settled
from mlxcel.engine.sequence import Phase, RequestState
from mlxcel.engine.served_form import alike_tokens
from mlxcel.engine.snapshot import snapshot_of
from mlxcel.errors import EngineError, MlxcelError
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Chunk, Request

__all__ = ["Engine"]

log = logging.getLogger(__name__)


class Engine:
    """Decodes many requests together, each with its solo output.

    Parameters
    ----------
    model : LoadedModel
        Target and tokenizer.
    drafter : Drafter, optional
        Proposes tokens; without one every request runs classic.
    settings : Settings, optional
        Limits and steps.
    governor : Governor, optional
        Decides which requests speculate; without one all do that may.
    rule : callable, optional
        Says how passes are padded, when first needed; by default as the settings alone say.
    clock : callable, optional
        Seconds, for the times in the statistics.
    """

    def __init__(
        self,
        model: LoadedModel,
        drafter: Drafter | None = None,
        settings: Settings | None = None,
        *,
        governor: Governor | None = None,
        rule: Callable[[], RowRule] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.settings = settings or Settings()
        layout = model.target.layout
        rewindable = layout.windows is not None
        # Why the drafter that was given does not run.
        self.no_drafter = layout.reason if drafter is not None else ""
        self.scheduler = Scheduler(
            max_rows=self.settings.max_rows if rewindable else 1,
            max_width=self.settings.max_width,
            governor=governor if rewindable and drafter is not None else None,
            rule=rule or (lambda: rule_of(self.settings)),
            invariant=rewindable and self.settings.numerics == "invariant",  # else always 1 x 1
            budget=Budget(model.target, drafter if rewindable else None, self.settings),
            alike=alike_tokens(model, self.settings),
        )
        self.batch = Batch(
            model.target, slack=self.settings.max_width, length_step=self.settings.length_step
        )
        self.rows = Rows(self.batch, drafter if rewindable else None)
        self._in_flight: list[tuple[Plan, Check]] = []
        self._clock = clock
        self._ids = itertools.count()
        self._broken: str | None = None
        self._timed: dict[int, RequestState] = {}  # those with a timeout
        self._rounds = RoundClock(clock)
        self.metrics = Metrics(self.settings.max_width)
        self._outbox = Outbox(self.scheduler, self.metrics, clock)
        self.prefixes = Prefixes(self.settings, self.scheduler, self.rows, layout=layout)
        self._intake = Intake(
            model, self.settings, self.scheduler, self.rows, self._outbox, self._rounds,
            self.prefixes, clock,
        )  # fmt: skip

    @property
    def drafter(self) -> Drafter | None:
        """What proposes; ``None`` without one, and once it has failed."""
        return self.rows.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter | None) -> None:
        self.rows.drafter = drafter

    def add(self, request: Request) -> int:
        """Queue a request.

        Returns
        -------
        int
            Its id, which its chunks carry.

        Raises
        ------
        RequestError
            A parameter does not fit the model or the settings; nothing is queued.
        CapacityError
            The queue is full, or it would not fit into memory even alone.
        EngineError
            The engine has failed.
        """
        if self._broken:
            raise EngineError(f"the engine has failed: {self._broken}; load the model again")
        try:
            state = self._accepted(request)
        except MlxcelError as error:
            self.metrics.refused[error.code] += 1
            raise
        self.metrics.received += 1
        if request.params.max_tokens == 0:
            self._outbox.end(state, "length")
        elif state.deadline is not None:
            self._timed[state.id] = state
        return state.id

    def _accepted(self, request: Request) -> RequestState:
        state = new_state(
            next(self._ids), request, self.model, self.drafter, self.no_drafter, self.settings
        )
        state.arrived = self._clock()
        if request.params.max_tokens:
            self.scheduler.accept(state, self.settings.max_queue)
        return state

    def cancel(self, request_id: int) -> bool:
        """End a request now, wherever it stands; return whether it was unfinished."""
        for state in self.scheduler.unfinished:
            if state.id == request_id:
                self._outbox.end(state, "cancelled")
                self._drop(state)
                return True
        return False

    @property
    def busy(self) -> bool:
        """Whether `step` has anything left to do."""
        return self.scheduler.busy or bool(self._in_flight or self._outbox)

    @property
    def failed(self) -> str | None:
        """Why it serves nothing any more; ``None`` while it does."""
        return self._broken

    def rest(self, interrupted: Callable[[], bool]) -> bool:
        """While not `busy`: give memory back, find out one more width; whether more is left.

        See `Governor.rest`.
        """
        mx.clear_cache()
        governor = self.scheduler.governor
        return governor is not None and not self._broken and governor.rest(interrupted)

    @property
    def cache_bytes(self) -> int:
        """Bytes of key/value buffers, of the drafter's own state and of kept prefixes."""
        return self.rows.nbytes + self.prefix_bytes

    @property
    def prefix_bytes(self) -> int:
        """Bytes of what is kept of requests that have ended; see `Prefixes`."""
        return self.prefixes.nbytes

    def clear_prefixes(self) -> None:
        """Give back what is kept of requests that have ended."""
        self.prefixes.clear()

    def snapshot(self) -> dict[str, Any]:
        """What has been counted since the engine was made, and what there is now."""
        return snapshot_of(self)

    def step(self) -> list[Chunk]:
        """Do one chunk of prefill and one round; return what became known.

        Raises
        ------
        EngineError
            A verify pass failed. Every unfinished request has ended with an error chunk,
            which the next call returns.
        """
        try:
            self._end_overdue()
            if self._must_read_first():
                self._settle(keep=0)
            self._make_room()
            if self._intake.advance() is not None:
                serial = self._must_read_first()
                if serial:  # with the new row the next round may be another one
                    self._settle(keep=0)
                self._rounds.joined(serial=serial)
            launched = self._launch_round()
            self._settle(keep=1 if launched else 0)
        except (RuntimeError, ValueError, MemoryError) as error:
            self._fail_all(error)
            raise EngineError(f"a round failed: {error}") from error
        if self.rows.slots and not self.scheduler.running and not self._in_flight:
            self.rows.clear()
        return self._outbox.take()

    def _end_overdue(self) -> None:
        """End the requests whose time is up, wherever they stand."""
        if not self._timed:
            return
        now = self._clock()
        for state in list(self._timed.values()):
            if state.phase is Phase.FINISHED:
                del self._timed[state.id]
            elif state.overdue(now):
                self._outbox.end(state, "timeout")
                self._drop(state)

    def _make_room(self) -> None:
        """Push back what is outranked by the queue; its caches are kept as a prefix, if at all."""
        reader = self.scheduler.outranked_reader()
        if reader is not None:
            self._intake.end()
            self._push_back(reader)
        for state in self.scheduler.to_push_back():
            self.prefixes.keep_row(state)
            self.rows.leave(state.slot)
            self._push_back(state)

    def _push_back(self, state: RequestState) -> None:
        self.scheduler.push_back(state)
        self.metrics.preemptions += 1

    def _must_read_first(self) -> bool:
        """Whether proposals of the next round need the tokens of the last one."""
        serial = self.drafter is not None and self.drafter.on_host
        return serial and self.scheduler.drafts_next

    def _launch_round(self) -> bool:
        """Plan, draft, verify; enqueue and do not wait."""
        before = self._in_flight[-1][0] if self._in_flight else None
        plan = self.scheduler.plan(before)
        if plan is None:
            return False
        self.prefixes.part(plan.slots)
        self.rows.arrange(plan.slots, plan.bound)
        plan, drafts = self._propose(plan)
        shape = self.scheduler.shape(plan)
        check = self.batch.verify(
            drafts, plan.widths, bound=shape.bound, exact=shape.exact, pad_to=shape.tokens
        )
        absorbed = [] if self.drafter is None else self.drafter.absorb(check, plan)
        mx.async_eval([check.packed, *self.batch.pending(), *absorbed])
        self._in_flight.append((plan, check))
        return True

    def _propose(self, plan: Plan) -> tuple[Plan, mx.array | None]:
        """Ask the drafter; one that fails is parked, and the round is a classic one."""
        if self.drafter is None:
            return self.scheduler.narrow(plan, [1] * len(plan.slots)), None
        try:
            draft = self.drafter.draft(self.batch, plan)
        except Exception as error:
            log.exception("the %s drafter failed and is parked", self.drafter.kind)
            self._park(f"the drafter failed: {error}")
            return self.scheduler.narrow(plan, [1] * len(plan.slots)), None
        return self.scheduler.narrow(plan, draft.widths), draft.tokens

    def _park(self, reason: str) -> None:
        """Go on without the drafter."""
        self.drafter, self.no_drafter = None, reason
        self._intake.without_drafter()
        park(self.scheduler, reason)

    def _settle(self, *, keep: int) -> None:
        """Read rounds in flight, oldest first, until ``keep`` are left."""
        while len(self._in_flight) > keep:
            plan, check = self._in_flight.pop(0)
            packed = np.ascontiguousarray(np.array(check.packed, copy=False))
            settled = self.scheduler.settle(plan, packed)
            self.metrics.round(plan.widths)
            after = self._in_flight[0][0] if self._in_flight else None
            serial = self._must_read_first()
            seconds = self._rounds.settled(plan, settled, after, serial=serial)
            self.scheduler.learn(plan, settled, seconds)
            self._observe(settled, packed)
            for row in settled:
                if not self._outbox.settled_row(row, packed, check):
                    report_burst(row.state, self.scheduler)
                    self._drop(row.state)

    def _observe(self, settled: list[Settled], packed: np.ndarray) -> None:
        if self.drafter is not None and settled:
            rows = [row.row for row in settled]
            self.drafter.observe(
                [row.state.slot for row in settled], [row.count for row in settled], packed[1][rows]
            )

    def _drop(self, state: RequestState) -> None:
        """Take a request out of wherever it is."""
        self._timed.pop(state.id, None)
        if state is self.scheduler.prefilling:
            self._intake.end()
        elif self.scheduler.running.get(state.slot) is state:
            self.prefixes.keep_row(state)
            self.scheduler.release(state)
            self.rows.leave(state.slot)
        else:
            self.scheduler.waiting.remove(state)

    def _fail_all(self, error: Exception) -> None:
        """A round failed: its rows' state is lost, so every request ends with the error."""
        self._broken = str(error)
        self._timed.clear()
        self._in_flight.clear()
        for state in self.scheduler.unfinished:
            self._outbox.end(state, "error", f"a round failed: {error}")
        self._intake.drop()
        self.scheduler.clear()
        self.rows.clear()
        self.clear_prefixes()  # copies may still wait for what has failed
