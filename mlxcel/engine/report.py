"""Turning slot counters and device arrays into the records a completion carries."""

from __future__ import annotations

import numpy as np

from mlxcel._fast import SlotTable
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
        top = ()
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
        The request; its tokens have been emitted.
    table : SlotTable or None
        Holds its counters, unless it never ran.
    now : float
        Clock reading, seconds.
    last : Settled, optional
        The round that ended it.
    taken : int
        Tokens of that round in the output. Fewer than were settled if a stop text cut it:
        what came after the cut is taken out of the counters.
    """
    decision = state.decision
    began = state.first_token_at
    times = {
        "prefill_seconds": max(began - state.prefill_began, 0.0) if began else 0.0,
        "decode_seconds": max(now - began, 0.0) if began else 0.0,
        "width_requested": decision.width,
    }
    if table is None:
        reason = decision.reason
        if decision.run:
            reason = "the output ended before the first round"
        return SpecStats(kind=decision.kind, ran=False, reason=reason, **times)  # type: ignore[arg-type]
    counters = table.stats(state.slot)
    proposed, accepted = list(counters["proposed"]), list(counters["accepted"])
    if last is not None and taken < last.count:
        for at in range(taken, min(last.width - 1, last.count)):
            proposed[at] -= 1
        for at in range(taken, min(last.accepted, last.count)):
            accepted[at] -= 1
    deepest = max((at + 1 for at, count in enumerate(proposed) if count), default=0)
    reason = decision.reason
    if decision.run and not deepest:
        reason = "the drafter had nothing to propose"
    return SpecStats(
        kind=decision.kind,
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
        **times,  # type: ignore[arg-type]
    )
