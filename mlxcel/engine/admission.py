"""Checks of a request against the model, and whether it speculates."""

from __future__ import annotations

import secrets
from dataclasses import replace

from mlxcel.config import Settings
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.sequence import Decision, RequestState
from mlxcel.errors import RequestError
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Request

__all__ = ["decide_speculation", "new_state", "validate"]


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
    if request.width is not None and request.width > settings.max_width:
        raise RequestError(
            f"width {request.width} is above max_width {settings.max_width}", param="width"
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
    if request.speculation == "off":
        return Decision(False, 1, kind, "the request turned speculation off")
    width = settings.default_width if request.width is None else request.width
    if drafter is None:
        reason = unavailable or "no drafter is loaded"
        if request.speculation == "on":
            raise RequestError(f"speculation is not available: {reason}", param="speculation")
        return Decision(False, 1, kind, reason)
    if width == 1:
        return Decision(False, 1, kind, "width 1 is classic decode")
    asked = "the request asked for it" if request.speculation == "on" else "a drafter is loaded"
    return Decision(True, width, kind, asked)
