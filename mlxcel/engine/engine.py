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
from dataclasses import replace

import mlx.core as mx
import numpy as np

from mlxcel.config import Settings
from mlxcel.decide.rows import RowRule, rule_of
from mlxcel.engine.admission import govern, new_state, park, report_burst
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.governor import Governor
from mlxcel.engine.plan import Plan
from mlxcel.engine.reading import Reading
from mlxcel.engine.report import spec_stats, token_logprobs
from mlxcel.engine.round_clock import RoundClock
from mlxcel.engine.scheduler import Scheduler, Settled
from mlxcel.engine.sequence import Phase, RequestState
from mlxcel.errors import EngineError, MlxcelError
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Chunk, FinishReason, Request, SpecStats

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
        rewindable = model.target.layout.windows is not None
        self.drafter = drafter if rewindable else None
        self._no_drafter = model.target.layout.reason if drafter is not None else ""
        self.scheduler = Scheduler(
            max_rows=self.settings.max_rows if rewindable else 1,
            max_width=self.settings.max_width,
            governor=governor if self.drafter is not None else None,
            rule=rule or (lambda: rule_of(self.settings)),
            invariant=rewindable and self.settings.numerics == "invariant",  # else always 1 x 1
        )
        self.batch = Batch(
            model.target, slack=self.settings.max_width, length_step=self.settings.length_step
        )
        self._rows: list[int] = []  # slot of each row of the batch
        self._reading: Reading | None = None
        self._in_flight: list[tuple[Plan, Check]] = []
        self._chunks: list[Chunk] = []
        self._clock = clock
        self._ids = itertools.count()
        self._broken: str | None = None
        self._rounds = RoundClock(clock)

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
        EngineError
            The engine has failed.
        """
        if self._broken:
            raise EngineError(f"the engine has failed: {self._broken}; load the model again")
        state = new_state(
            next(self._ids), request, self.model, self.drafter, self._no_drafter, self.settings
        )
        if request.params.max_tokens == 0:
            self._finish_outside(state, "length")
        else:
            self.scheduler.waiting.append(state)
        return state.id

    def cancel(self, request_id: int) -> bool:
        """End a request now, wherever it stands; return whether it was unfinished."""
        for state in self.scheduler.unfinished:
            if state.id == request_id:
                self._drop(state)
                self._finish_outside(state, "cancelled")
                return True
        return False

    @property
    def busy(self) -> bool:
        """Whether `step` has anything left to do."""
        return self.scheduler.busy or bool(self._in_flight or self._chunks)

    def rest(self, interrupted: Callable[[], bool]) -> bool:
        """While not `busy`: find out one more width; whether more is left (`Governor.rest`)."""
        governor = self.scheduler.governor
        return governor is not None and not self._broken and governor.rest(interrupted)

    @property
    def cache_bytes(self) -> int:
        """Bytes of key/value buffers and of the drafter's own state."""
        return self.batch.caches.nbytes + (self.drafter.nbytes if self.drafter else 0)

    def step(self) -> list[Chunk]:
        """Do one chunk of prefill and one round; return what became known.

        Raises
        ------
        EngineError
            A verify pass failed. Every unfinished request has ended with an error chunk,
            which the next call returns.
        """
        try:
            if self._must_read_first():
                self._settle(keep=0)
            self._advance_prefill()
            launched = self._launch_round()
            self._settle(keep=1 if launched else 0)
        except (RuntimeError, ValueError, MemoryError) as error:
            self._fail_all(error)
            raise EngineError(f"a round failed: {error}") from error
        if self._rows and not self.scheduler.running and not self._in_flight:
            self._clear_rows()
        chunks, self._chunks = self._chunks, []
        return chunks

    def _must_read_first(self) -> bool:
        """Whether proposals of the next round need the tokens of the last one."""
        serial = self.drafter is not None and self.drafter.on_host
        return serial and any(state.decision.run for state in self.scheduler.running.values())

    def _launch_round(self) -> bool:
        """Plan, draft, verify; enqueue and do not wait."""
        before = self._in_flight[-1][0] if self._in_flight else None
        plan = self.scheduler.plan(before)
        if plan is None:
            return False
        self._arrange(plan.slots)
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
            return plan, None
        try:
            draft = self.drafter.draft(self.batch, plan)
        except Exception as error:
            log.exception("the %s drafter failed and is parked", self.drafter.kind)
            self._park(f"the drafter failed: {error}")
            return self.scheduler.narrow(plan, [1] * len(plan.slots)), None
        return self.scheduler.narrow(plan, draft.widths), draft.tokens

    def _park(self, reason: str) -> None:
        """Go on without the drafter."""
        self.drafter, self._no_drafter = None, reason
        if self._reading is not None:
            self._reading.drafting = None
        park(self.scheduler, reason)

    def _settle(self, *, keep: int) -> None:
        """Read rounds in flight, oldest first, until ``keep`` are left."""
        while len(self._in_flight) > keep:
            plan, check = self._in_flight.pop(0)
            packed = np.ascontiguousarray(np.array(check.packed, copy=False))
            settled = self.scheduler.settle(plan, packed)
            after = self._in_flight[0][0] if self._in_flight else None
            self._rounds.settled(plan, settled, after, serial=self._must_read_first())
            self._observe(settled, packed)
            for row in settled:
                self._emit_row(row, packed, check)

    def _observe(self, settled: list[Settled], packed: np.ndarray) -> None:
        if self.drafter is not None and settled:
            rows = [row.row for row in settled]
            self.drafter.observe(
                [row.state.slot for row in settled], [row.count for row in settled], packed[1][rows]
            )

    def _emit_row(self, row: Settled, packed: np.ndarray, check: Check) -> None:
        state, count = row.state, row.count
        finish: FinishReason | None = (None, "stop", "length")[row.finish]
        chunk, taken = state.emit(
            packed[1, row.row, :count].tolist(),
            [at < row.accepted for at in range(count)],
            token_logprobs(check.choice, row.row, count, state.params.logprobs),
            finish,
        )
        if finish is None and not state.ended_by_text:
            self._chunks.append(chunk)
            return
        stats = spec_stats(state, self.scheduler.table, self._clock(), row, taken)
        report_burst(state, self.scheduler)
        self._drop(state)
        self._conclude(state, chunk, finish, stats)

    def _arrange(self, slots: list[int]) -> None:
        """Make the rows of the batch those of the plan."""
        rows = [self._rows.index(slot) for slot in slots]
        if rows == list(range(len(self._rows))):
            return
        self.batch.keep(rows)
        if self.drafter is not None:
            self.drafter.keep(rows)
        self._rows = list(slots)

    def _advance_prefill(self) -> None:
        """One chunk of one prompt; a failure ends that request only."""
        state = self.scheduler.next_to_prefill() or self.scheduler.prefilling
        if state is None:
            return
        try:
            self._rounds.disturb()
            if self._reading is None:
                govern(state, self.scheduler)
                state.prefill_began = self._clock()
                self._reading = Reading(state, self.model, self.drafter, self.settings)
            self._reading.advance()
            if self._reading.complete:
                self._join(self._reading)
        except MlxcelError as error:
            self._drop(state)
            self._finish_outside(state, "error", error.message)
        except Exception as error:
            log.exception("request %d failed in prefill", state.id)
            self._drop(state)
            self._finish_outside(state, "error", f"prefill failed: {error}")

    def _join(self, reading: Reading) -> None:
        """Read the first token; the row joins the batch unless it ends there."""
        state, prompt = reading.state, reading.state.request.prompt_ids
        choice = reading.first()
        first = int(np.array(choice.tokens)[0, 0])
        state.first_token_at = self._clock()
        finish: FinishReason | None = None
        if first in state.stop_ids:
            finish = "stop"
        elif state.params.max_tokens == 1:
            finish = "length"
        logprobs = token_logprobs(choice, 0, 1, state.params.logprobs)
        chunk, _ = state.emit([first], [False], logprobs, finish)
        if finish is not None or state.ended_by_text:
            self._drop(state)
            self._conclude(state, chunk, finish, spec_stats(state, None, self._clock()))
            return
        self._reading = None
        slot = self.scheduler.admit(state)
        self.batch.join(
            reading.prefill.caches, reading.sampler, length=len(prompt),
            bonus=choice.tokens[0], previous=prompt[-1],
        )  # fmt: skip
        if self.drafter is not None and reading.drafting is not None:
            self.drafter.join(slot, prompt, first, reading.drafting)
        self._rows.append(slot)
        self._chunks.append(chunk)
        self._rounds.joined(serial=self._must_read_first())

    def _conclude(
        self, state: RequestState, chunk: Chunk, finish: FinishReason | None, stats: SpecStats
    ) -> None:
        """End a request with a chunk of its tokens; a stop text outranks the other reasons."""
        ended: FinishReason = "stop" if state.ended_by_text or finish is None else finish
        self._chunks.append(replace(chunk, completion=state.close(ended, stats)))

    def _drop(self, state: RequestState) -> None:
        """Take a request out of whatever phase it is in."""
        if state.phase is Phase.WAITING:
            self.scheduler.waiting.remove(state)
        elif state.phase is Phase.PREFILL:
            self._rounds.disturb()  # its chunk may still run
            self.scheduler.prefilling = self._reading = None
        elif state.phase is Phase.RUNNING:
            self.scheduler.release(state)
            if state.slot in self._rows:
                self._rows[self._rows.index(state.slot)] = -1
            if self.drafter is not None:
                self.drafter.leave(state.slot)

    def _clear_rows(self) -> None:
        """Nobody runs: give the buffers back."""
        self.batch.clear()
        if self.drafter is not None:
            self.drafter.keep([])
        self._rows = []

    def _finish_outside(
        self, state: RequestState, finish: FinishReason, error: str | None = None
    ) -> None:
        table = self.scheduler.table if state.phase is Phase.RUNNING else None
        stats = spec_stats(state, table, self._clock())
        self._chunks.append(state.last_chunk(finish, stats, error))

    def _fail_all(self, error: Exception) -> None:
        """A round failed: its rows' state is lost, so every request ends with the error."""
        self._broken, self._reading = str(error), None
        self._in_flight.clear()
        for state in self.scheduler.unfinished:
            self._finish_outside(state, "error", f"a round failed: {error}")
        self.scheduler.clear()
        self._clear_rows()
