"""Whether a request that begins may speculate beside others, and what is said of it afterwards."""

from __future__ import annotations

from mlxcel.engine.governor import Governor
from mlxcel.engine.sequence import RequestState
from mlxcel.types import Decision

__all__ = ["beside_others", "why_beside"]


def beside_others(
    state: RequestState, asked: Decision, governor: Governor | None, others: int
) -> None:
    """Decide whether the drafter is prepared for rounds of several rows.

    What gate and policy said is about a burst of one row. Where they said no, the table of
    round costs may still speculate beside others, if the drafter has read the prompt: so it
    does where there are others and the table may want it. A request that is the only one
    is spared that work. An operator's override that forbids bursts forbids this too, and so
    does an exactness veto.

    Parameters
    ----------
    state : RequestState
        About to be read; `mlxcel.engine.admission.govern` has decided about it.
    asked : Decision
        What its request asked for, before that.
    governor : Governor or None
        Decides; nothing changes without one.
    others : int
        Requests that run or wait.
    """
    load = None if governor is None or not asked.run else governor.load()
    if load is None:
        return
    request, decision = state.request, state.decision
    if decision.run:
        named = request.width is not None or request.speculation == "on"
        state.load = load.row(asked.width if named else 0)
    elif others and decision.source not in ("override", "exactness") and load.wants(others):
        state.load = load.row()


def why_beside(state: RequestState, reason: str, *, drafted: bool) -> str:
    """Add to a reason what held beside other rows.

    Parameters
    ----------
    state : RequestState
        A request that has run.
    reason : str
        Why it speculated or not when it was alone.
    drafted : bool
        Whether any draft was proposed.
    """
    load = state.load
    if load is None or not load.rounds:
        return reason
    if not drafted and load.parked == load.rounds:
        return f"{load.beside} rows: classic decode gave the most tokens per second"
    return f"{reason}; beside other rows by the measured cost of rounds"
