"""A server that speaks the API as the page needs it, with scripted answers and faults.

For the tests of the page, and to try it without a model::

    python -m tests.web.page_server        # on 127.0.0.1:8123, figures of a real pairing
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.web.page_script import Script, measured_policy, rounds_of, timings_of, tokens_of
from webapp.page import blueprint

KEEP_ALIVE = ": keep-alive\n\n"
DONE = "data: [DONE]\n\n"


class QuietHandler(WSGIRequestHandler):
    """Serves without a line per request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


class PageServer:
    """The page and a fake API on a free port of the loopback address.

    Attributes
    ----------
    script : Script
        How it behaves from now on.
    seen : list of dict
        Bodies of the chat requests.
    gone : threading.Event
        Set when a client has left in the middle of a stream.
    most_at_once : int
        Streams that were written together.
    """

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Script()
        self.seen: list[dict[str, Any]] = []
        self.gone = threading.Event()
        self.most_at_once = 0
        self._open: set[object] = set()
        self._server = make_server(
            "127.0.0.1", port, make_app(self), threaded=True, request_handler=QuietHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def stream(self, body: dict[str, Any]) -> Iterator[str]:
        """Events of a chat request, with its pauses."""
        mine = object()
        self._open.add(mine)
        self.most_at_once = max(self.most_at_once, len(self._open))
        try:
            for event in events(self.script, body):
                if event == DONE:  # the client may ask again before this thread is back
                    self._open.discard(mine)
                yield event
        except GeneratorExit:
            self.gone.set()
            raise
        finally:
            self._open.discard(mine)


def refused(status: int, message: str, code: str) -> tuple[Response, int]:
    """An error in the API's one shape."""
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return jsonify(error=error), status


def make_app(server: PageServer) -> Flask:
    """The page's blueprint and the routes that it asks."""
    app = Flask("page_server", static_folder=None)
    app.register_blueprint(blueprint)

    def locked() -> tuple[Response, int] | None:
        key = server.script.key
        if not key or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return refused(401, "this server asks for an API key", "auth.key")

    @app.get("/health")
    def health() -> tuple[Response, int]:
        status, body = server.script.health
        return jsonify(body), status

    @app.get("/v1/models")
    def models() -> Any:
        return locked() or jsonify(object="list", data=[{"id": "demo", "object": "model"}])

    @app.get("/v1/internal/mtp-policy")
    def policy() -> Any:
        return locked() or jsonify(server.script.policy or {"policies": [], "load_widths": None})

    @app.post("/v1/chat/completions")
    def chat() -> Any:
        script = server.script
        if script.refusal is not None:
            status, error, headers = script.refusal
            return jsonify(error=error), status, headers
        if (closed := locked()) is not None:
            return closed
        body = request.get_json()
        server.seen.append(body)
        return Response(server.stream(body), content_type="text/event-stream")

    return app


def events(script: Script, body: dict[str, Any]) -> Iterator[str]:
    """What a stream is made of."""
    drafting = body["speculation"] != "off"
    width = body.get("draft_width", script.width) if drafting else 1
    text = script.other_text if script.other_text is not None and drafting else script.text
    tokens = tokens_of(text)[: body["max_tokens"]]
    blocks = list(rounds_of(tokens, width))
    pause = script.step * (script.cost if width > 1 else 1.0)
    yield data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    yield KEEP_ALIVE
    began = time.monotonic()
    sent = 0
    for at, block in enumerate(blocks):
        if at:
            time.sleep(pause)
        sent += len(block)
        yield data(chunk(block, script.flags))
        if script.ending != "done" and sent >= script.after:
            yield from fault(script.ending)
            return
    done = {"index": 0, "delta": {}, "finish_reason": "stop", "seed": body["seed"]}
    yield data({"choices": [done], "usage": None})
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 21, "completion_tokens": len(tokens)},
        "timings": timings_of(blocks, time.monotonic() - began, width, body["speculation"]),
    }
    yield data(last)
    yield DONE


def chunk(block: list[dict[str, Any]], flags: bool) -> dict[str, Any]:
    """One round's tokens as a chunk."""
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"content": "".join(token["text"] for token in block)},
        "finish_reason": None,
    }
    if flags:
        choice["tokens"] = block
    return {"choices": [choice]}


def fault(ending: str) -> Iterator[str]:
    """The end of a stream that goes wrong."""
    if ending == "error":
        error = {
            "message": "the engine has failed: out of memory",
            "type": "engine_error", "code": "engine.failed", "param": None,
        }  # fmt: skip
        yield f"event: error\ndata: {json.dumps({'error': error})}\n\n"
    elif ending == "junk":
        yield "data: {not json\n\n"
    elif ending == "break":
        raise ConnectionAbortedError("the script breaks the connection here")
    elif ending == "hang":
        while True:
            time.sleep(0.05)
            yield KEEP_ALIVE


def data(value: dict[str, Any]) -> str:
    """One event."""
    return f"data: {json.dumps(value)}\n\n"


if __name__ == "__main__":
    with PageServer(Script(step=0.046, policy=measured_policy()), port=8123) as running:
        print(running.address)
        threading.Event().wait()
