"""API keys, and which other sites' pages may use the API."""

from __future__ import annotations

import hashlib
import hmac

from flask import Flask, Response, request

from webapp.config import WebConfig
from webapp.errors import ApiError

__all__ = ["Keys", "install"]

GUARDED = ("/v1/", "/tokenize", "/detokenize")
ALLOWED_HEADERS = "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta"


class Keys:
    """Compares keys in a time that does not depend on which is right, or where they differ.

    Parameters
    ----------
    keys : sequence of str
        Any opens; none: everything opens.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def accept(self, given: str) -> bool:
        """Whether a key is one of them."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        found = False
        for known in self._digests:  # all of them, every time
            found |= hmac.compare_digest(known, digest)
        return found or not self._digests


def _given_key() -> str:
    """From ``Authorization: Bearer KEY``, else ``X-Api-Key: KEY`` (Anthropic's)."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return request.headers.get("X-Api-Key", "")


def install(app: Flask, config: WebConfig) -> None:
    """Ask for keys, and answer other origins, as the configuration says."""
    keys = Keys(config.api_keys)

    def preflight() -> Response | None:
        if request.method == "OPTIONS" and config.cors_origins:
            return Response(status=204)
        return None

    def check_key() -> None:
        if not config.api_keys or not request.path.startswith(GUARDED):
            return
        given = _given_key()
        if not keys.accept(given):
            what = "the API key is not known" if given else "an API key is needed"
            raise ApiError(401, f"{what}: send Authorization: Bearer KEY")

    def allow_origin(response: Response) -> Response:
        origin = request.headers.get("Origin")
        if not config.cors_origins:
            return response
        response.headers.add("Vary", "Origin")
        if origin and (origin in config.cors_origins or "*" in config.cors_origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            # The official clients send a dozen of their own, which grow with every version.
            asked = request.headers.get("Access-Control-Request-Headers")
            response.headers["Access-Control-Allow-Headers"] = asked or ALLOWED_HEADERS
            response.headers["Access-Control-Max-Age"] = "600"
        return response

    app.before_request(preflight)
    app.before_request(check_key)
    app.after_request(allow_origin)
