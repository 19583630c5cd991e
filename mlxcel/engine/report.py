"""Turning slot counters and device arrays into the records a completion carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mlxcel._fast import FINISH_NONE, SlotTable
from mlxcel.engine.counters import added
from mlxcel.engine.load_admission import why_beside
from mlxcel.engine.scheduler import Settled
from mlxcel.engine.sequence import RequestState
from mlxcel.runtime.sampling import Choice
from mlxcel.types import SpecStats, TokenLogprob

__all__ = ["spec_stats", "token_logprobs"]


def token_logprobs(
    choice: Choice, row: int, count: int, wanted: int | None
) -> list[TokenLogprob] | None:
    """Log-probabilities of the first ``count`` tokens of a row, if the request wants them."""
    if wanted is None or choice.logprobs is None:
        return None
    tokens = np.array(choice.tokens[row, :count])
    values = np.array(choice.logprobs[row, :count])
    ids = None if choice.top_ids is None else np.array(choice.top_ids[row, :count])
    found = []
    for at in range(count):
        top: tuple[tuple[int, float], ...] = ()
        if ids is not None and wanted:
            top = tuple(
                zip(ids[at, :wanted].tolist(), values[at, 1 : 1 + wanted].tolist(), strict=True)
            )
        found.append(TokenLogprob(int(tokens[at]), float(values[at, 0]), top))
    return found


def spec_stats(
    state: RequestState,
    table: SlotTable | None,
    now: float,
    last: Settled | None = None,
    taken: int = 0,
) -> SpecStats:
    """Statistics of a request.

    Parameters
    ----------
    state : RequestState
        Its tokens have been emitted.
    table : SlotTable or None
        Holds its counters, unless it does not run.
    now : float
        Clock reading, seconds.
    last : Settled, optional
        The round that ended it.
    taken : int
        Tokens of that round in the output; a stop text may have cut it. What came after the
        cut is taken out of the counters.
    """
    decision, reason = state.decision, state.decision.reason
    base = _timed(state, now)
    counters = state.earlier if table is None else added(state.earlier, table.stats(state.slot))
    if counters is None:
        early = "the output ended before the first round"
        return replace(base, reason=early) if decision.run else base
    proposed, accepted = list(counters["proposed"]), list(counters["accepted"])
    if last is not None and taken < last.count:
        drafts = last.width - 1
        counted = drafts if last.finish == FINISH_NONE else min(drafts, last.count)
        _take_back(proposed, taken, counted)
        _take_back(accepted, taken, min(last.accepted, last.count))
    deepest = max((at for at, count in enumerate(proposed, 1) if count), default=0)
    if decision.run and not deepest:
        reason = _why_classic(state, counters["rounds"])
    reason = why_beside(state, reason, drafted=bool(deepest))
    return replace(
        base,
        ran=bool(deepest),
        reason=reason,
        rounds=counters["rounds"],
        proposed=sum(proposed),
        accepted=sum(accepted),
        emitted_from_verify=max(len(state.token_ids) - 1, 0),
        proposed_by_position=tuple(proposed[:deepest]),
        accepted_by_position=tuple(accepted[:deepest]),
        width_min=counters["width_min"],
        width_max=counters["width_max"],
        widths=tuple(sorted(state.widths.items())),
    )


def _timed(state: RequestState, now: float) -> SpecStats:
    """Decision and times of a request; its counters are missing."""
    decision, began = state.decision, state.first_token_at
    return SpecStats(
        kind=decision.kind,
        ran=False,
        reason=decision.reason,
        width_requested=decision.width,
        queue_seconds=max((state.prefill_began or now) - state.arrived, 0.0),
        prefill_seconds=max(began - state.prefill_began, 0.0) if began else 0.0,
        decode_seconds=max(now - began, 0.0) if began else 0.0,
        preemptions=state.preemptions,
    )


def _why_classic(state: RequestState, rounds: int) -> str:
    if rounds and state.probes_asked >= rounds:
        return "all its rounds were classic steps, timed for the policy"
    if state.probes_asked and state.probes_asked == rounds - 1 and set(state.widths) == {1}:
        return "its rounds were classic steps, timed for the policy, and one for a single token"
    if state.controller is not None and state.controller.holder == 1:
        return "parked: classic decode gave the most tokens per second"
    return "the drafter had nothing to propose"


def _take_back(counts: list[int], begin: int, end: int) -> None:
    """Uncount what lies past the end of the output."""
    for at in range(begin, end):
        counts[at] -= 1
