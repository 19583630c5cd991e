"""Requests on their way in: prompts are read chunk by chunk beside the rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlxcel.config import Settings
from mlxcel.engine.admission import govern
from mlxcel.engine.load_admission import beside_others
from mlxcel.engine.outbox import Outbox
from mlxcel.engine.prefixes import Prefixes
from mlxcel.engine.reading import Reading
from mlxcel.engine.round_clock import RoundClock
from mlxcel.engine.rows import Rows
from mlxcel.engine.scheduler import Scheduler
from mlxcel.engine.sequence import RequestState
from mlxcel.errors import MlxcelError
from mlxcel.runtime.loader import LoadedModel

__all__ = ["Intake"]

log = logging.getLogger(__name__)


class Intake:
    """Reads one prompt at a time and makes it a row.

    Parameters
    ----------
    model : LoadedModel
        The target.
    settings : Settings
        Chunk size and buffer steps.
    scheduler, rows, outbox, rounds, prefixes
        The engine's.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        scheduler: Scheduler,
        rows: Rows,
        outbox: Outbox,
        rounds: RoundClock,
        prefixes: Prefixes,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._settings = settings
        self._scheduler = scheduler
        self._rows = rows
        self._outbox = outbox
        self._rounds = rounds
        self._prefixes = prefixes
        self._clock = clock
        self._reading: Reading | None = None

    def advance(self) -> RequestState | None:
        """One chunk of one prompt; return the request that became a row with it.

        A failure ends that request only, unless the batch itself is in doubt.
        """
        state = self._scheduler.next_to_prefill() or self._scheduler.prefilling
        if state is None:
            return None
        try:
            self._rounds.disturb()
            reading = self._reading or self._begin(state)
            reading.advance()
            if reading.at_branch:
                self._prefixes.keep_reading(reading)
            bonus = self._bonus(reading) if reading.complete else None
        except MlxcelError as error:
            self.drop()
            self._outbox.end(state, "error", error.message, error.code)
            return None
        except Exception as error:
            log.exception("request %d failed in prefill", state.id)
            self.drop()
            self._outbox.end(state, "error", f"prefill failed: {error}")
            return None
        if bonus is None:
            return None
        self._reading = None
        self._rows.join(self._scheduler.admit(state), reading, bonus)
        return state

    def _begin(self, state: RequestState) -> Reading:
        if not state.token_ids:  # one that was pushed back keeps what was decided
            self._decide(state)
            state.prefill_began = self._clock()
        resume = self._prefixes.find(state)
        self._reading = Reading(state, self._model, self._rows.drafter, self._settings, resume)
        return self._reading

    def _decide(self, state: RequestState) -> None:
        """Whether it speculates alone, and whether it may beside others."""
        scheduler, asked = self._scheduler, state.decision
        govern(state, scheduler)
        others = len(scheduler.running) + len(scheduler.waiting)
        beside_others(state, asked, scheduler.governor, others)

    def _bonus(self, reading: Reading) -> int | None:
        """Last output token: the first one, which is emitted; ``None`` where it ends there."""
        if reading.state.token_ids:
            return reading.state.token_ids[-1]
        first, goes_on = self._outbox.first_token(reading.state, reading.first())
        if goes_on:
            return first
        self.end()
        return None

    def without_drafter(self) -> None:
        """The drafter has been parked: the prompt being read needs no preparation for it."""
        if self._reading is not None:
            self._reading.drafting = None

    def end(self) -> None:
        """The request whose prompt is being read has ended; what has been read is kept."""
        if self._reading is not None:
            self._prefixes.keep_reading(self._reading)
        self.drop()

    def drop(self) -> None:
        """Give up the prompt being read."""
        if self._scheduler.prefilling is not None:
            self._rounds.disturb()  # its chunk may still run
        self._scheduler.prefilling = self._reading = None
