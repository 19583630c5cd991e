"""Server-sent events: frames, and a response that streams them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flask import Response

__all__ = ["COMMENT", "DONE", "event", "frame", "stream_response"]

COMMENT = ": keep-alive\n\n"
DONE = "data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def frame(data: Any) -> str:
    """One event without a name."""
    return f"data: {_encode(data)}\n\n"


def event(name: str, data: Any) -> str:
    """One event with a name."""
    return f"event: {name}\n{frame(data)}"


def stream_response(frames: Iterator[str]) -> Response:
    """A response that sends frames as they come, past any proxy's buffer."""
    response = Response(frames, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response
