"""``GET /openapi.json``: what is served, from the routes and the models that parse bodies."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Flask, Response, current_app, jsonify
from pydantic.json_schema import models_json_schema

from mlxcel import __version__
from webapp.auth import GUARDED
from webapp.described import Description, describe, description_of

blueprint = Blueprint("openapi", __name__)

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error", "description": "On /v1/messages only."},
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        },
    },
}
OF_BODIES = {
    "400": "A field is bad, unknown, or not supported; the message names it.",
    "408": "The time is up.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "No room now; see Retry-After.",
}
OF_ALL = {
    "404": "There is no such thing.",
    "500": "An internal error; its id is in the server's log.",
    "503": "The engine loads, drains, or is down.",
}


@blueprint.get("/openapi.json")
@describe("This description.")
def openapi() -> Response:
    """Describe what is served."""
    return jsonify(document(current_app))


def document(app: Flask) -> dict[str, Any]:
    """The description of an application.

    Raises
    ------
    LookupError
        A route does not describe itself.
    """
    paths: dict[str, Any] = {}
    models = []
    for rule in app.url_map.iter_rules():
        if rule.endpoint == "static" or rule.endpoint.startswith("page."):
            continue  # for people
        found = description_of(app.view_functions[rule.endpoint])
        if found is None:
            raise LookupError(f"the route {rule.rule} has no @describe")
        if found.request is not None:
            models.append(found.request)
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            operation = _operation(rule.rule, rule.endpoint, sorted(rule.arguments), found)
            paths.setdefault(path, {})[method.lower()] = operation
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxcel", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}) | {"Error": ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _operation(
    rule: str, endpoint: str, arguments: list[str], found: Description
) -> dict[str, Any]:
    good: dict[str, Any] = {found.media: {"schema": _schema_of(found.media)}}
    if found.streams:
        good["text/event-stream"] = {"schema": {"type": "string"}}
    guarded = rule.startswith(GUARDED)
    refusals = OF_ALL | (OF_BODIES if found.request else {})
    refusals |= {"401": "An API key is needed."} if guarded else {}
    made: dict[str, Any] = {
        "operationId": endpoint.replace(".", "_"),
        "summary": found.summary,
        "responses": {"200": {"description": "The answer.", "content": good}}
        | {status: _refusal(text) for status, text in sorted(refusals.items())},
    }
    if guarded:
        made["security"] = [{}, {"bearer": []}, {"header": []}]
    if arguments:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in arguments
        ]
    if found.request is not None:
        schema = {"$ref": f"#/components/schemas/{found.request.__name__}"}
        made["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schema}},
        }  # fmt: skip
    return made


def _schema_of(media: str) -> dict[str, Any]:
    return {"type": "object" if media == "application/json" else "string"}


def _refusal(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
