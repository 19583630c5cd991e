"""``GET /health`` and ``GET /metrics``; neither asks for a key."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify
from prometheus_client import CONTENT_TYPE_LATEST

from webapp.described import describe
from webapp.engine import holder
from webapp.metrics import exposition

blueprint = Blueprint("health", __name__)

SHOWN = ("state", "label", "done", "total", "model", "drafter", "running", "waiting", "requests")


@blueprint.get("/health")
@describe("Whether requests are taken, and the engine's state.")
def health() -> Response:
    """200 if the engine takes requests; else 503, with its state."""
    status = holder().status()
    body = {name: status[name] for name in SHOWN if status.get(name) is not None}
    if status["state"] == "ready":
        return jsonify({"status": "ok"} | body)
    reason = status.get("reason") or (status.get("error") or [None, None])[1]
    body = {"status": "unavailable"} | body | {
        "error": {
            "message": str(reason or f"the engine is {status['state']}"),
            "type": "overloaded_error",
            "code": status["state"],
            "param": None,
        }
    }  # fmt: skip
    response = jsonify(body)
    response.status_code = 503
    response.headers["Retry-After"] = "1"
    return response


@blueprint.get("/metrics")
@describe("Counters and histograms of the engine, for Prometheus.", media="text/plain")
def metrics() -> Response:
    """What the engine has counted since it was started."""
    return Response(exposition(holder().metrics()), content_type=CONTENT_TYPE_LATEST)
