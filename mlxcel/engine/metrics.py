"""Counters and histograms of an engine, and one log line per request.

Names follow vLLM's where it has them. Nothing here grows with the number of requests.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

from mlxcel.decide.histogram import Histogram
from mlxcel.engine.sequence import RequestState
from mlxcel.types import Completion

__all__ = ["Metrics"]

log = logging.getLogger("mlxcel.requests")
"""One JSON object per ended request, level INFO."""


class Metrics:
    """What has happened since the engine was made; not thread-safe.

    Parameters
    ----------
    max_width : int
        Widest block, for the counts by draft position.
    """

    def __init__(self, max_width: int) -> None:
        self.received = 0
        self.refused: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.decisions: Counter[tuple[str, bool]] = Counter()
        self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.rounds = 0
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self.accepted_by_position = [0] * (max_width - 1)
        self.widths: Counter[int] = Counter()
        self.rows: Counter[int] = Counter()
        self.queue_seconds = Histogram()
        self.first_token_seconds = Histogram()
        self.inter_token_seconds = Histogram()
        self.request_seconds = Histogram()

    def first_token(self, state: RequestState) -> None:
        """A request has its first token."""
        self.first_token_seconds.observe(state.first_token_at - state.arrived)

    def round(self, widths: list[int]) -> None:
        """A round has been read."""
        self.rounds += 1
        self.rows[len(widths)] += 1

    def row(self, state: RequestState, width: int, count: int, accepted: int, now: float) -> None:
        """A row's part of a round has been emitted."""
        self.widths[width] += 1
        if width > 1:
            self.drafts += 1
            self.draft_tokens += width - 1
            self.accepted_tokens += accepted
            for position in range(accepted):
                self.accepted_by_position[position] += 1
        self.inter_token_seconds.observe(max(now - state.last_at, 0.0) / count, count)

    def ended(self, state: RequestState, done: Completion, now: float) -> None:
        """A request has ended, whatever way."""
        self.finished[done.finish_reason] += 1
        self.decisions[done.decision.source, done.decision.run] += 1
        self.prompt_tokens += done.usage.prompt_tokens
        self.cached_tokens += done.usage.cached_tokens
        self.generation_tokens += done.usage.completion_tokens
        self.queue_seconds.observe(done.speculation.queue_seconds)
        self.request_seconds.observe(now - state.arrived)
        if log.isEnabledFor(logging.INFO):
            log.info("%s", json.dumps(self._line(state, done, now)))

    def _line(self, state: RequestState, done: Completion, now: float) -> dict[str, Any]:
        stats, decision = done.speculation, done.decision
        first = state.first_token_at - state.arrived if state.first_token_at else None
        return {
            "request": state.id,
            "finish": done.finish_reason,
            "error": done.error,
            "prompt_tokens": done.usage.prompt_tokens,
            "cached_tokens": done.usage.cached_tokens,
            "completion_tokens": done.usage.completion_tokens,
            "queue_seconds": round(stats.queue_seconds, 6),
            "first_token_seconds": None if first is None else round(first, 6),
            "seconds": round(now - state.arrived, 6),
            "tokens_per_second": round(stats.tokens_per_second, 3),
            "speculation": decision.run,
            "source": decision.source,
            "reason": stats.reason,
            "rounds": stats.rounds,
            "width": round(stats.width_mean, 3),
            "acceptance": round(stats.acceptance, 4),
            "priority": state.request.priority,
            "preemptions": stats.preemptions,
            "seed": done.seed,
        }

    def snapshot(self) -> dict[str, Any]:
        """All of it, as JSON values; times in seconds."""
        return {
            "received": self.received,
            "refused": dict(self.refused),
            "finished": dict(self.finished),
            "cancellations": self.finished["cancelled"],
            "preemptions": self.preemptions,
            "decisions": [
                {"source": source, "run": run, "count": count}
                for (source, run), count in sorted(self.decisions.items())
            ],
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "rounds": self.rounds,
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "accepted_by_position": list(self.accepted_by_position),
            "rows_by_width": {str(width): n for width, n in sorted(self.widths.items())},
            "rounds_by_rows": {str(rows): n for rows, n in sorted(self.rows.items())},
            "queue_seconds": self.queue_seconds.snapshot(),
            "time_to_first_token_seconds": self.first_token_seconds.snapshot(),
            "inter_token_seconds": self.inter_token_seconds.snapshot(),
            "request_seconds": self.request_seconds.snapshot(),
        }
