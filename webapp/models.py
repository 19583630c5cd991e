"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, current_app, jsonify

from webapp.described import describe
from webapp.engine import holder
from webapp.generation import check_model, served_names

blueprint = Blueprint("models", __name__)


def _model(name: str) -> dict[str, Any]:
    facts = holder().front.facts
    return {
        "id": name,
        "object": "model",
        "created": current_app.extensions["mlxcel-began"],
        "owned_by": "mlxcel",
        "max_model_len": facts["context"],
        "drafter": facts["drafter"],
        "chat": facts["has_chat_template"],
        "tools": facts.get("tool_calls") is not None,
    }


@blueprint.get("/v1/models")
@describe("List the model.")
def list_models() -> Response:
    """The model, under its first name."""
    return jsonify({"object": "list", "data": [_model(served_names()[0])]})


@blueprint.get("/v1/models/<path:model>")
@describe("Describe the model.")
def get_model(model: str) -> Response:
    """The model, by any of its names."""
    return jsonify(_model(check_model(model)))
