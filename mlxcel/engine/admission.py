"""Checks of a request against the model, and whether it speculates."""

from __future__ import annotations

import secrets
from dataclasses import replace

from mlxcel.config import Settings
from mlxcel.decide.rows import widest
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.governor import Governor
from mlxcel.engine.scheduler import Scheduler
from mlxcel.engine.sequence import RequestState
from mlxcel.errors import ExactnessError, RequestError
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Decision, Request

__all__ = [
    "decide_speculation",
    "govern",
    "new_state",
    "park",
    "report_burst",
    "steer",
    "validate",
]


def new_state(
    number: int,
    request: Request,
    model: LoadedModel,
    drafter: Drafter | None,
    unavailable: str,
    settings: Settings,
) -> RequestState:
    """Check a request and make the state the engine keeps of it.

    A request without a seed is given a random one.

    Raises
    ------
    RequestError
        See `validate` and `decide_speculation`.
    """
    validate(request, model, settings)
    params = request.params
    if params.seed is None:
        params = replace(params, seed=secrets.randbits(64))
    ends = frozenset() if params.ignore_eos else frozenset(model.tokenizer.eos_token_ids)
    return RequestState(
        id=number,
        request=request,
        params=params,
        stop_ids=ends | frozenset(params.stop_token_ids),
        detokenizer=model.tokenizer.detokenizer,
        decision=decide_speculation(request, drafter, unavailable, settings),
    )


def validate(request: Request, model: LoadedModel, settings: Settings) -> None:
    """Refuse a request that does not fit the model or the settings.

    Raises
    ------
    RequestError
        Names the field, its value and the bound.
    """
    vocab, prompt = model.target.vocab_size, request.prompt_ids
    worst = max(prompt)
    if worst >= vocab or min(prompt) < 0:
        bad = worst if worst >= vocab else min(prompt)
        raise RequestError(
            f"prompt token id {bad} is outside the vocabulary of {vocab} ids", param="prompt"
        )
    limit = model.target.context_length
    asked = len(prompt) + request.params.max_tokens
    if limit is not None and asked > limit:
        raise RequestError(
            f"prompt of {len(prompt)} tokens and max_tokens {request.params.max_tokens} make "
            f"{asked}, but the model's context is {limit} tokens: shorten one of them",
            param="max_tokens" if len(prompt) < limit else "prompt",
        )
    for token in request.params.logit_bias:
        if token >= vocab:
            raise RequestError(
                f"logit_bias token id {token} is outside the vocabulary of {vocab} ids",
                param="logit_bias",
            )
    _validate_width(request.width, settings)


def _validate_width(width: int | None, settings: Settings) -> None:
    if width is None or width <= widest(settings):
        return
    if width > settings.max_width:
        raise RequestError(f"width {width} is above max_width {settings.max_width}", param="width")
    raise RequestError(
        f"width {width} is above default_width {settings.default_width}, for which all passes are "
        "made in invariant numerics: ask for less, or raise MLXCEL_DRAFT_WIDTH",
        param="width",
    )


def decide_speculation(
    request: Request, drafter: Drafter | None, unavailable: str, settings: Settings
) -> Decision:
    """Decide whether a request speculates, and say why.

    Parameters
    ----------
    request : Request
        The request.
    drafter : Drafter or None
        The engine's drafter, if one can serve this target.
    unavailable : str
        Why a drafter that was given cannot serve this target.
    settings : Settings
        Default width.

    Raises
    ------
    RequestError
        ``speculation="on"`` where it cannot run.
    """
    kind = "none" if drafter is None else drafter.kind

    def classic(source: str, reason: str) -> Decision:
        return Decision(run=False, width=1, kind=kind, source=source, reason=reason)

    if request.speculation == "off":
        return classic("request", "the request turned speculation off")
    width = settings.default_width if request.width is None else request.width
    if drafter is None:
        reason = unavailable or "no drafter is loaded"
        if request.speculation == "on":
            raise RequestError(f"speculation is not available: {reason}", param="speculation")
        return classic("engine", reason)
    if width == 1:
        return classic("request", "width 1 is classic decode")
    if request.speculation == "on":
        source, reason = "request", "the request asked for it"
    else:
        source, reason = "default", "a drafter is loaded"
    return Decision(run=True, width=width, kind=kind, source=source, reason=reason)


def govern(state: RequestState, scheduler: Scheduler) -> None:
    """Ask exactness, policy and gate about a request that is about to start.

    A request that insists on speculation is spared the question whether it pays, but not
    whether it is exact.

    Raises
    ------
    ExactnessError
        It insists, and the pairing is not exact.
    """
    if state.decision.run or scheduler.invariant:
        scheduler.rule()  # may time kernels, which no round's time should hold
    governor, decision = scheduler.governor, state.decision
    if governor is None or not decision.run:
        return
    if state.request.speculation == "on":
        veto = governor.veto(decision.width)
        if veto:
            raise ExactnessError(
                f"speculation at width {decision.width} is not exact here: {veto}; ask with "
                "speculation auto or off", param="speculation",
            )  # fmt: skip
        steer(state, governor)
        return
    ruling = scheduler.mtp_b1_should_run(decision.width)
    state.decision = replace(
        decision,
        run=ruling.run,
        width=decision.width if ruling.run else 1,
        source=ruling.source,
        reason=ruling.reason,
    )
    if ruling.run:
        timed = governor.probe_rounds(decision.width, state.params.max_tokens - 1)
        # The first and the last of a pipelined series have no time of their own.
        state.probes_asked = state.probes_left = timed + 2 if timed else 0
        steer(state, governor)


def steer(state: RequestState, governor: Governor) -> None:
    """Leave the width of each round to the controller, unless the request named one.

    Only where the policy let the burst run may it be parked: neither the request that insists
    nor the operator's override nor a gate without the policy has left that open.
    """
    decision = state.decision
    if state.request.width is not None:
        return
    steering = governor.steering(decision.width, decision.source)
    if steering is not None:
        state.meter.controller = steering.controller
        state.least = 1 if decision.source == "policy" else 2
        state.decision = replace(decision, steered=True)


def report_burst(state: RequestState, scheduler: Scheduler) -> None:
    """Tell the policy what a request measured, if it was the policy's to decide."""
    if scheduler.governor is None:
        return
    scheduler.governor.save()
    if state.decision.source not in ("policy", "gate"):
        return
    sample = state.meter.sample()
    if sample.rounds or sample.probe_rounds:
        scheduler.governor.observe(state.meter.width, sample)


def park(scheduler: Scheduler, reason: str) -> None:
    """Let every unfinished request go on without the drafter."""
    for slot, state in scheduler.running.items():
        state.meter.controller = state.load = None
        state.decision = replace(state.decision, width=1, source="engine", reason=reason)
        scheduler.table.set_width(slot, 1)
        state.width_set, state.probes_left = 1, 0
    prefilling = scheduler.prefilling
    for state in [*scheduler.waiting, *([] if prefilling is None else [prefilling])]:
        state.meter.controller = state.load = None
        state.probes_left = 0
        state.decision = replace(
            state.decision, run=False, width=1, source="engine", reason=reason
        )
