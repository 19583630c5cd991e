"""Everything that leaves the engine: tokens that became known, and how requests end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mlxcel.engine.metrics import Metrics
from mlxcel.engine.report import spec_stats, token_logprobs
from mlxcel.engine.scheduler import Scheduler, Settled
from mlxcel.engine.sequence import Phase, RequestState
from mlxcel.runtime.batch import Check
from mlxcel.runtime.sampling import Choice
from mlxcel.types import Chunk, FinishReason, SpecStats

__all__ = ["Outbox"]


class Outbox:
    """Chunks not yet fetched.

    Parameters
    ----------
    scheduler : Scheduler
        Has the counters of running requests.
    metrics : Metrics
        Is told of everything that leaves.
    clock : callable
        Seconds.
    """

    def __init__(
        self, scheduler: Scheduler, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._chunks: list[Chunk] = []

    def __len__(self) -> int:
        return len(self._chunks)

    def take(self) -> list[Chunk]:
        """All chunks since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def first_token(self, state: RequestState, choice: Choice) -> tuple[int, bool]:
        """Emit what the prompt pass chose; return the token and whether the request goes on.

        One that does not is concluded here; its row is the caller's to drop.
        """
        first = int(np.array(choice.tokens)[0, 0])
        state.first_token_at = state.last_at = self._clock()
        self._metrics.first_token(state)
        finish: FinishReason | None = None
        if first in state.stop_ids:
            finish = "stop"
        elif state.params.max_tokens == 1:
            finish = "length"
        logprobs = token_logprobs(choice, 0, 1, state.params.logprobs)
        chunk, _ = state.emit([first], [False], logprobs, finish)
        if finish is None and not state.ended_by_text:
            self._chunks.append(chunk)
            return first, True
        self._conclude(state, chunk, finish, spec_stats(state, None, self._clock()))
        return first, False

    def settled_row(self, row: Settled, packed: np.ndarray, check: Check) -> bool:
        """Emit a row's part of a round; return whether the request goes on.

        One that does not is concluded here; its row is the caller's to drop.
        """
        state, count = row.state, row.count
        finish: FinishReason | None = (None, "stop", "length")[row.finish]
        chunk, taken = state.emit(
            packed[1, row.row, :count].tolist(),
            [at < row.accepted for at in range(count)],
            token_logprobs(check.choice, row.row, count, state.params.logprobs),
            finish,
        )
        now = self._clock()
        self._metrics.row(state, row.width, count, row.accepted, now)
        state.last_at = now
        if finish is None and not state.ended_by_text:
            self._chunks.append(chunk)
            return True
        stats = spec_stats(state, self._scheduler.table, self._clock(), row, taken)
        self._conclude(state, chunk, finish, stats)
        return False

    def _conclude(
        self, state: RequestState, chunk: Chunk, finish: FinishReason | None, stats: SpecStats
    ) -> None:
        """End a request with a chunk of its tokens; a stop text outranks the other reasons."""
        ended: FinishReason = "stop" if state.ended_by_text or finish is None else finish
        done = state.close(ended, stats)
        self._metrics.ended(state, done, self._clock())
        self._chunks.append(replace(chunk, completion=done))

    def end(
        self,
        state: RequestState,
        finish: FinishReason,
        error: str | None = None,
        code: str | None = None,
    ) -> None:
        """End a request outside a round; with an error, its message and its code."""
        table = self._scheduler.table if state.phase is Phase.RUNNING else None
        stats = spec_stats(state, table, self._clock())
        chunk = state.last_chunk(finish, stats, error, code)
        assert chunk.completion is not None
        self._metrics.ended(state, chunk.completion, self._clock())
        self._chunks.append(chunk)
