"""A front without a model, and readers of what the application sends."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flask.testing import FlaskClient

from mlxcel.errors import MlxcelError, RequestError
from mlxcel.streams import Stream
from mlxcel.types import (
    Chunk,
    Completion,
    Decision,
    Request,
    SamplingParams,
    SpecStats,
    Usage,
)

HELLO = [{"role": "user", "content": "hello"}]
FACTS: dict[str, Any] = {
    "model": "fake", "drafter": "lookup", "has_chat_template": True, "context": 100,
    "vocabulary": 300, "max_width": 16,
    "tool_calls": {"start": "<call>", "end": "</call>", "start_ids": [7, 8]},
}  # fmt: skip


def completion(text: str, reason: str = "stop", **changed: Any) -> Completion:
    """An answer of a token a character."""
    decision = Decision(run=True, width=4, kind="lookup", source="request", reason="a test")
    stats = SpecStats(
        kind="lookup", ran=True, reason="a test", rounds=2, proposed=6, accepted=3,
        emitted_from_verify=max(len(text) - 1, 0), widths=((4, 2),), decode_seconds=0.5,
        prefill_seconds=0.25, queue_seconds=0.125,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "text": text, "token_ids": tuple(map(ord, text)), "drafted": (False,) * len(text),
        "finish_reason": reason, "usage": Usage(5, len(text), 2), "seed": 9, "decision": decision,
        "speculation": stats,
    }  # fmt: skip
    return Completion(**(fields | changed))


def chunks(pieces: Sequence[str], reason: str = "stop", **changed: Any) -> list[Chunk]:
    """An answer in pieces, as the engine delivers it."""
    made = [
        Chunk(
            request_id=0, text=piece, token_ids=tuple(map(ord, piece)),
            drafted=(False,) * len(piece), pieces=tuple(piece),
        )
        for piece in pieces
    ]  # fmt: skip
    done = completion("".join(pieces), reason, **changed)
    return [*made, Chunk(request_id=0, text="", token_ids=(), drafted=(), completion=done)]


class FakeFront:
    """Answers every request with the same script: chunks, or errors to raise."""

    def __init__(self, script: Sequence[Chunk | BaseException] = (), **facts: Any) -> None:
        self.script: list[Chunk | BaseException] = list(script) or [*chunks(["he", "llo"])]
        self.facts = FACTS | facts
        self.asked: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.refusal: BaseException | None = None
        self.state: dict[str, Any] = {"state": "ready", "model": "fake"}
        self.running = threading.Event()

    def stream(self, prompt: Sequence[int], **arguments: Any) -> Stream:
        if self.refusal is not None:
            raise self.refusal
        own = ("speculation", "width", "priority", "timeout", "pieces")
        SamplingParams(**{name: each for name, each in arguments.items() if name not in own})
        Request(prompt_ids=tuple(prompt), **{name: arguments[name] for name in own[:-1]})
        number = len(self.asked)
        self.asked.append({"prompt": tuple(prompt)} | arguments)
        pieces: queue.SimpleQueue[Chunk | BaseException] = queue.SimpleQueue()
        for item in self.script:
            pieces.put(item)
        self.running.set()
        return Stream(pieces, lambda: self.cancelled.append(number))

    def encode(self, prompt: Any, *, tools: Sequence[Any] = ()) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(ord(letter) % 300 for letter in prompt)
        if any(message["role"] == "system" for message in prompt[1:]):
            raise RequestError("the chat template refuses the messages: system", param="messages")
        self.template = {"messages": prompt, "tools": list(tools)}
        return (1, 2, 3, 4, 5)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return [chr(token) for token in token_ids]

    def parse_tool_call(self, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
        try:
            return [json.loads(text)]
        except ValueError as error:
            raise RequestError(f"no tool call: {error}") from error

    def mtp_policy(self) -> list[dict[str, Any]]:
        return []

    def metrics(self) -> dict[str, Any]:
        if isinstance(self.refusal, MlxcelError):
            raise self.refusal
        return {"received": len(self.asked), "drafter": "lookup", "decisions": []}

    def status(self) -> dict[str, Any]:
        return self.state


def events(text: str) -> list[tuple[str | None, Any]]:
    """Name and data of every event of a stream; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def post(client: FlaskClient, path: str, body: Any, **options: Any) -> Any:
    """The answer to a body, which has to be a success."""
    response = client.post(path, json=body, **options)
    assert response.status_code == 200, response.get_data(as_text=True)
    return response.get_json()


def streamed(client: FlaskClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Data of all events of a stream that ends as it should."""
    response = client.post(path, json=body | {"stream": True})
    text = response.get_data(as_text=True)
    assert response.status_code == 200, text
    assert response.mimetype == "text/event-stream"
    found = events(text)
    assert found[-1] == (None, "[DONE]")
    return [data for _, data in found[:-1]]


def choices(objects: Sequence[Any]) -> Iterator[Any]:
    """All choices of the objects of a stream."""
    for each in objects:
        yield from each["choices"]


def refused(response: Any, status: int) -> dict[str, Any]:
    """The error in a response, which has to be of the one shape."""
    assert response.status_code == status, response.get_data(as_text=True)
    body = response.get_json()
    assert set(body) - {"type"} == {"error"}
    assert set(body["error"]) == {"message", "type", "code", "param"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


def soon(true: Callable[[], Any], seconds: float = 30.0) -> bool:
    """Wait for a condition."""
    ticks = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if true():
            return True
        ticks.wait(0.01)
    return bool(true())
