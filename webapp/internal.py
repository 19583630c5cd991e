"""``GET /v1/internal/mtp-policy``: why requests speculate, or do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Blueprint, Response, jsonify

from webapp.described import describe
from webapp.engine import holder

blueprint = Blueprint("internal", __name__)

SCHEMA_VERSION = 1


@blueprint.get("/v1/internal/mtp-policy")
@describe("Gate, policy and exactness of the running pairing, with reasons.")
def mtp_policy() -> Response:
    """What the adaptive policy rests on, by block width, and what has been decided so far."""
    front = holder().front
    return jsonify(report(front.facts, front.mtp_policy(), holder().metrics()))


def report(
    facts: Mapping[str, Any], policies: Sequence[Mapping[str, Any]], counts: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer.

    Parameters
    ----------
    facts : mapping
        Of the model.
    policies : sequence of mapping
        `Front.mtp_policy`: one for each block width that has been asked for.
    counts : mapping
        `Front.metrics`.

    Returns
    -------
    dict
        ``state`` and ``reason`` are those of the width that was asked for last to be listed;
        without any, ``unavailable`` and why.
    """
    head: dict[str, Any]
    if policies:
        shown = policies[0]
        head = {"state": shown.get("state"), "reason": shown.get("reason"), "run": shown.get("run")}
        head["decline_detail"] = shown.get("veto")
    else:
        head = {"state": "unavailable", "reason": _why_none(facts, counts), "run": None}
        head["decline_detail"] = None
    drafts = counts.get("draft_tokens", 0)
    return head | {
        "schema_version": SCHEMA_VERSION,
        "model": facts["model"],
        "drafter": facts["drafter"],
        "max_width": facts.get("max_width"),
        "policies": [dict(each) for each in policies],
        "decisions": list(counts.get("decisions", ())),
        "drafts": counts.get("drafts", 0),
        "draft_tokens": drafts,
        "accepted_tokens": counts.get("accepted_tokens", 0),
        "acceptance": round(counts.get("accepted_tokens", 0) / drafts, 4) if drafts else None,
        "load_widths": counts.get("load_widths"),
    }


def _why_none(facts: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    if counts.get("drafter", facts["drafter"]) in (None, "none"):
        return "no drafter is loaded"
    if not counts.get("decisions"):
        return "no request has ended yet"
    return "no request that may speculate alone has come yet, or MLXCEL_MTP_ADAPTIVE is off"
