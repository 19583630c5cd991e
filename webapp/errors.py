"""Errors on their way out: one table of statuses, and one shape on every route."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from mlxcel.errors import (
    CapacityError,
    EngineError,
    ExactnessError,
    MlxcelError,
    RequestError,
)
from webapp.engine import holder

__all__ = ["ApiError", "described", "install"]

log = logging.getLogger("mlxcel.web")

RETRY_SECONDS = 1
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
CODES = {
    400: "bad_request", 401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed",
    408: "timeout", 413: "body_too_large", 415: "unsupported_media_type", 429: "capacity",
    500: "internal", 503: "engine",
}  # fmt: skip
PARAMS = {"width": "draft_width", "prompt_ids": "prompt"}
"""What fields of the library are called in requests."""


class ApiError(Exception):
    """An answer other than success.

    Parameters
    ----------
    status : int
        A key of `TYPES`.
    message : str
        What is wrong, where, with which value, and what to do.
    param : str, optional
        The field.
    code : str, optional
        Stable; by default that of the status.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or CODES[status]

    def body(self) -> dict[str, Any]:
        """The one shape of errors."""
        return {
            "error": {
                "message": self.message,
                "type": TYPES[self.status],
                "code": self.code,
                "param": self.param,
            }
        }


def described(error: BaseException, *, draining: bool = False) -> ApiError:
    """Any error as an answer; what nobody expected gets an id, and goes to the log with it.

    Parameters
    ----------
    error : BaseException
        What was raised.
    draining : bool
        Whether the engine shuts down, so that waiting for room is of no use.
    """
    match error:
        case ApiError():
            return error
        case RequestError():
            param = PARAMS.get(error.param or "", error.param)
            return ApiError(400, error.message, param=param)
        case ExactnessError():
            return ApiError(400, error.message, param="speculation", code=error.code)
        case CapacityError():
            return ApiError(503 if draining else 429, error.message)
        case EngineError() | MlxcelError():
            return ApiError(503, error.message, code=error.code)
        case HTTPException():
            return _of_werkzeug(error)
    name = uuid.uuid4().hex
    log.error("request failed, id %s", name, exc_info=error)
    return ApiError(500, f"an internal error, which the server's log has under the id {name}")


def _of_werkzeug(error: HTTPException) -> ApiError:
    status = error.code or 500
    if status == 422:
        status = 400
    said = error.description or error.name
    if status == 413:
        limit = request.max_content_length
        said = f"the body is larger than the limit of {limit} bytes: send less"
        if request.content_length is not None:
            said = (
                f"the body has {request.content_length} bytes, the limit is {limit}: send less"
            )
    if status == 405:
        methods = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
        said = f"{request.method} is not possible at {request.path}: use {methods}"
    if status == 404:
        said = f"there is nothing at {request.path[:200]}: /openapi.json lists what there is"
    return ApiError(status if status in TYPES else 400 if status < 500 else 500, said)


def install(app: Flask) -> None:
    """Make every failure of an application an answer of the one shape."""

    def handle(error: Exception) -> Response:
        draining = isinstance(error, CapacityError) and holder().state() == "draining"
        made = described(error, draining=draining)
        body = made.body()
        if request.path == "/v1/messages":  # Anthropic's clients look for it
            body = {"type": "error"} | body
        response = jsonify(body)
        response.status_code = made.status
        if made.status in (429, 503):
            response.headers["Retry-After"] = str(RETRY_SECONDS)
        if made.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if isinstance(error, HTTPException) and error.code == 405:
            methods = getattr(error, "valid_methods", None) or ()
            response.headers["Allow"] = ", ".join(sorted(methods))
        return response

    app.register_error_handler(Exception, handle)
