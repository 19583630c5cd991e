"""One request on its way: from prompt to completion, and the only path that emits."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxcel.decide.queueing import Rank
from mlxcel.decide.stops import StopMatcher
from mlxcel.decide.width import WidthController
from mlxcel.engine.load_steering import LoadRow
from mlxcel.engine.meter import BurstMeter
from mlxcel.types import (
    Chunk,
    Completion,
    Decision,
    FinishReason,
    Request,
    SamplingParams,
    SpecStats,
    TokenLogprob,
    Usage,
)

__all__ = ["Phase", "RequestState"]


class Phase(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class RequestState:
    """A request, its output so far and its clock readings (seconds).

    ``detokenizer`` has the interface of mlx-lm's streaming detokenizers.
    """

    id: int
    request: Request
    params: SamplingParams
    stop_ids: frozenset[int]
    detokenizer: Any
    decision: Decision
    phase: Phase = Phase.WAITING
    slot: int = -1
    arrived: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    completion: Completion | None = None
    cached_tokens: int = 0  # of the prompt, not read because another request had
    resumed: int = 0  # tokens that its present row began with, copied from another
    prefill_began: float = 0.0
    first_token_at: float = 0.0
    last_at: float = 0.0  # when its last tokens came
    probes_asked: int = 0  # rounds without drafter that the policy wants
    probes_left: int = 0  # how many of them are still to be planned
    width_set: int = 0  # in the slot table
    least: int = 1  # smallest width that the controller may choose
    widths: dict[int, int] = field(default_factory=dict)  # settled rounds by width
    load: LoadRow | None = None  # its part in rounds of several rows, if it may draft there

    preemptions: int = 0
    earlier: dict[str, Any] | None = None  # counters of the slots it has been pushed out of

    def __post_init__(self) -> None:
        self.meter = BurstMeter(self.decision.width)
        self._matcher = StopMatcher(self.params.stop)
        self._text: list[str] = []

    @property
    def rank(self) -> Rank:
        """Place in the order of service."""
        return Rank(self.request.priority, self.id)

    @property
    def deadline(self) -> float | None:
        """Clock reading at which it ends, if it has a timeout."""
        timeout = self.request.timeout
        return None if timeout is None else self.arrived + timeout

    def overdue(self, now: float) -> bool:
        """Whether its time is up at a clock reading."""
        return self.deadline is not None and now >= self.deadline

    @property
    def reserved(self) -> int:
        """Most tokens it can come to, prompt and output."""
        return len(self.request.prompt_ids) + self.params.max_tokens

    @property
    def context(self) -> tuple[int, ...]:
        """Tokens that have to be in the caches for it to go on: all but the last one."""
        return (*self.request.prompt_ids, *self.token_ids[:-1])

    @property
    def may_draft(self) -> bool:
        """Whether the drafter is prepared for it: alone, or beside others."""
        return self.decision.run or self.load is not None

    @property
    def controller(self) -> WidthController | None:
        """What chooses the widths of this request's rounds; ``None``: they are as given."""
        return self.meter.controller

    def next_width(self, in_flight: int, *, alone: bool, quiet: bool) -> int:
        """Width of the next round.

        Parameters
        ----------
        in_flight : int
            Rounds of this request that have not been read.
        alone : bool
            Whether no other row runs; the controller knows single rows only.
        quiet : bool
            Whether the round will have a time of its own, so that a width may be tried.
        """
        if self.probes_left:
            return 1
        controller = self.meter.controller
        if controller is None or not alone:
            return self.decision.width
        # Each round in flight emits one token at least.
        left = max(self.params.max_tokens - len(self.token_ids) - in_flight, 1)
        choose = controller.choose if quiet else controller.held
        return choose(left, self.least)

    def emit(
        self,
        tokens: Sequence[int],
        drafted: Sequence[bool],
        logprobs: Sequence[TokenLogprob] | None,
        finish: FinishReason | None,
    ) -> tuple[Chunk, int]:
        """Take tokens into the output, up to a stop text.

        Parameters
        ----------
        tokens, drafted, logprobs
            The tokens of one round; with ``finish == "stop"`` the last is a stop token.
        finish : str or None
            Why the output ends with these tokens, if it does.

        Returns
        -------
        Chunk
            What may be shown now; it carries no completion yet.
        int
            How many of the tokens were taken; fewer than given only if a stop text ended
            the output, which sets `ended_by_text`.
        """
        shown: list[str] = []
        taken = 0
        for token in tokens:
            taken += 1
            if finish == "stop" and taken == len(tokens):
                shown.append("")
                break
            self.detokenizer.add_token(token)
            shown.append(self._matcher.feed(self.detokenizer.last_segment))
            if self._matcher.stopped:
                break
        if finish is not None and not self._matcher.stopped:
            shown[-1] += self._tail()
        begin = len(self.token_ids)
        self.token_ids.extend(tokens[:taken])
        self.drafted.extend(drafted[:taken])
        if logprobs is not None:
            self.logprobs.extend(logprobs[:taken])
        text = "".join(shown)
        self._text.append(text)
        return self._chunk(text, begin, shown), taken

    @property
    def ended_by_text(self) -> bool:
        """Whether a stop text has ended the output."""
        return self._matcher.stopped

    def close(
        self,
        finish: FinishReason,
        stats: SpecStats,
        error: str | None = None,
        code: str | None = None,
    ) -> Completion:
        """End the request; what a stop matcher still holds back becomes text."""
        held = self._matcher.flush()
        if held:
            self._text.append(held)
        self.phase = Phase.FINISHED
        self.completion = Completion(
            text="".join(self._text),
            token_ids=tuple(self.token_ids),
            drafted=tuple(self.drafted),
            finish_reason=finish,
            usage=Usage(
                len(self.request.prompt_ids), len(self.token_ids), self.cached_tokens
            ),
            seed=self.params.seed or 0,
            decision=self.decision,
            speculation=stats,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            error=error,
            error_code=code,
        )
        return self.completion

    def last_chunk(
        self,
        finish: FinishReason,
        stats: SpecStats,
        error: str | None = None,
        code: str | None = None,
    ) -> Chunk:
        """End the request outside a round: cancelled, failed, or nothing to produce."""
        shown = "" if error is not None else self._tail()
        self._text.append(shown)
        completion = self.close(finish, stats, error, code)
        return replace(self._chunk(shown, len(self.token_ids)), completion=completion)

    def _tail(self) -> str:
        """Flush the detokenizer through the stop matcher."""
        self.detokenizer.finalize()
        fed = self._matcher.feed(self.detokenizer.last_segment)
        return fed if self._matcher.stopped else fed + self._matcher.flush()

    def _chunk(self, text: str, begin: int, pieces: Sequence[str] = ()) -> Chunk:
        with_logprobs = self.params.logprobs is not None
        return Chunk(
            request_id=self.id,
            text=text,
            token_ids=tuple(self.token_ids[begin:]),
            drafted=tuple(self.drafted[begin:]),
            pieces=tuple(pieces),
            logprobs=tuple(self.logprobs[begin:]) if with_logprobs else None,
        )
