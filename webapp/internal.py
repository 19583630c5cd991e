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
        JSON values. The state is that of the narrowest of the widths; ``policies`` has all.
        ``unavailable`` where there is none yet: ``reason_code`` and ``reason`` say why.
    """
    shown: Mapping[str, Any] = policies[0] if policies else {}
    code, reason = (None, shown.get("reason")) if policies else _why_none(facts, counts)
    drafts, accepted = counts.get("draft_tokens", 0), counts.get("accepted_tokens", 0)
    return {
        "schema_version": SCHEMA_VERSION,
        "state": shown.get("state", "unavailable"),
        "reason": reason,
        "reason_code": code,
        "decline_detail": shown.get("veto"),
        "verdict": shown.get("zone"),
        "mtp_enabled": shown.get("run"),
        "target": shown.get("target", facts["model"]),
        "drafter": shown.get("drafter", facts["drafter"]),
        "hardware": shown.get("host"),
        "block_size": shown.get("width"),
        "samples": shown.get("samples"),
        "samples_required": shown.get("samples_required"),
        "samples_remaining": shown.get("samples_remaining"),
        "acceptance_rate": round(accepted / drafts, 4) if drafts else None,
        "draft_tokens": drafts,
        "accepted_tokens": accepted,
        "policies": [dict(each) for each in policies],
        "decisions": list(counts.get("decisions", ())),
        "load_widths": counts.get("load_widths"),
    }


def _why_none(facts: Mapping[str, Any], counts: Mapping[str, Any]) -> tuple[str, str]:
    if counts.get("drafter", facts["drafter"]) in (None, "none"):
        return "no_mtp_dispatch", str(counts.get("no_drafter") or "no drafter is loaded")
    if not counts.get("decisions"):
        return "worker_not_ready", "no request has ended yet"
    return (
        "adaptive_disabled",
        "no request that may speculate has come yet, or MLXCEL_MTP_ADAPTIVE is off",
    )
