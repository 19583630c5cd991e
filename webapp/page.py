"""The page for people at ``/``: one HTML file, and its scripts and styles from a folder.

All figures on it come from the API, which the browser asks itself. The scripts are served under
the digest of their contents, so that a browser may keep them for good and never mixes versions.
Nothing here needs an API key: the page holds no secrets and lets the user enter one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flask import Blueprint, Response, abort, make_response, render_template, request

__all__ = ["SECURITY_HEADERS", "Asset", "assets", "blueprint", "digest"]

FOLDER = Path(__file__).parent / "static"

# Not the system's table: on some machines it calls a script text/plain, which browsers refuse.
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer of this module, errors of its routes aside."""

KEPT_FOR_GOOD = "public, max-age=31536000, immutable"
ASKED_EACH_TIME = "no-cache"

blueprint = Blueprint("page", __name__, template_folder="templates")


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page, as it is sent."""

    content: bytes
    content_type: str


@functools.cache
def assets() -> Mapping[str, Asset]:
    """Files of the page by name, read once; names with a suffix not in `TYPES` are left out."""
    return {
        path.name: Asset(path.read_bytes(), TYPES[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in TYPES
    }


@functools.cache
def digest() -> str:
    """Sixteen hexadecimal digits that change whenever a file of the page does."""
    found = hashlib.sha256()
    for name, asset in assets().items():
        for part in (name.encode(), asset.content):
            found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:16]


@blueprint.get("/")
def index() -> Response:
    """The page. A browser asks each time and gets 304 while nothing has changed."""
    return _dressed(make_response(render_template("index.html", digest=digest())), ASKED_EACH_TIME)


@blueprint.get("/assets/<version>/<name>")
def asset(version: str, name: str) -> Response:
    """A script, style sheet or image; 404 for one of another version of the page."""
    found = assets().get(name)
    if found is None or version != digest():
        abort(404, f"the page has no file {name!r} in version {version!r}: reload the page")
    response = Response(found.content)
    response.headers["Content-Type"] = found.content_type
    return _dressed(response, KEPT_FOR_GOOD)


def _dressed(response: Response, caching: str) -> Response:
    response.headers.update(SECURITY_HEADERS)
    response.headers["Cache-Control"] = caching
    response.add_etag()
    response.make_conditional(request)
    return response
