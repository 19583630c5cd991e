"""A host with a scripted engine, and clients that speak bytes."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from mlxcel.errors import RequestError
from mlxcel.front import Asked, Ticket
from mlxcel.remote.address import Listener
from mlxcel.remote.host import Host
from mlxcel.remote.wire import ANSWER_LIMIT, REQUEST_LIMIT, Frames, hello, pack
from mlxcel.types import Chunk, Completion, Decision, SpecStats, Usage

ASKED: dict[str, Any] = {"prompt": [1], "params": {}, "options": {}, "stream": True}


def until(true: Callable[[], Any], seconds: float = 30.0) -> bool:
    """Wait for a condition; return whether it came."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.005)
    return bool(true())


def chunk(number: int, text: str = "x", last: bool = False) -> Chunk:
    """A chunk, or the last of an answer."""
    decision = Decision(run=False, width=1, kind="none", source="engine", reason="a test")
    done = Completion(
        text=text, token_ids=(5,), drafted=(False,), finish_reason="length", usage=Usage(1, 1),
        seed=0, decision=decision, speculation=SpecStats(kind="none", ran=False, reason=""),
    )  # fmt: skip
    return Chunk(
        request_id=number, text=text, token_ids=(5,), drafted=(False,),
        completion=done if last else None,
    )  # fmt: skip


class ScriptedBackend:
    """Takes requests; the test says what comes of them."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"model": "made up", "has_chat_template": False}
        self.tickets: list[Ticket] = []
        self.cancelled: list[Ticket] = []
        self.running = 0
        self._ids = itertools.count()

    def begin(self, asked: Asked, ticket: Ticket) -> None:
        if asked.prompt == "bad":
            raise RequestError("a bad prompt", param="prompt")
        if asked.prompt == "bug":
            raise ZeroDivisionError("oh")
        self.tickets.append(ticket)
        ticket.accept(next(self._ids))

    def cancel(self, ticket: Ticket) -> None:
        self.cancelled.append(ticket)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        if name == "odd":
            return object()
        if name == "bug":
            raise ZeroDivisionError("oh")
        return [name, *arguments]


class RawClient:
    """A connection on which a test says what it likes; `hosted` closes it at last."""

    made: ClassVar[list[RawClient]] = []

    def __init__(self, path: Path, *, greet: bool = True) -> None:
        self.made.append(self)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(path))
        self._frames = Frames(ANSWER_LIMIT)
        self._found: list[list[Any]] = []
        if greet:
            self.say(hello())
            assert self.next()[0] == "hello"

    def say(self, message: list[Any]) -> None:
        self.sock.sendall(pack(message, REQUEST_LIMIT))

    def submit(self, number: int = 1, **changed: Any) -> None:
        self.say(["submit", number, ASKED | changed])

    def next(self) -> list[Any]:
        """The next message; an end of the connection is an error."""
        while not self._found:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the host has closed the connection")
            self._found += self._frames.feed(data)
        return self._found.pop(0)

    def until(self, kind: str) -> list[Any]:
        """The next message of a kind."""
        while (message := self.next())[0] != kind:
            pass
        return message

    def close(self) -> None:
        self.sock.close()


class Hosted:
    """A running host."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.states: list[dict[str, Any]] = []
        self.listener = Listener(path)
        self.path = path
        self.backend = ScriptedBackend()
        defaults: dict[str, Any] = {"buffer": 50, "drain_seconds": 5.0}
        self.host = Host(
            self.listener.socket, on_state=self.states.append, **(defaults | options)
        )
        self.ended: list[int] = []
        self.thread = threading.Thread(target=lambda: self.ended.append(self.host.run()))
        self.thread.start()

    def deliver(self, ticket: Ticket, *chunks: Chunk) -> None:
        """What the engine's thread does after a step."""
        for each in chunks:
            ticket.deliver(each)
        self.host.delivered()

    def ticket(self, at: int = 0) -> Ticket:
        assert until(lambda: len(self.backend.tickets) > at)
        return self.backend.tickets[at]

    def status(self) -> dict[str, Any]:
        client = RawClient(self.path)
        client.say(["call", 1, "status", []])
        found: dict[str, Any] = client.until("result")[2]
        client.close()
        return found


@contextmanager
def hosted(path: Path, *, ready: bool = True, **options: Any) -> Iterator[Hosted]:
    """A host that is drained at the end."""
    made = Hosted(path, **options)
    try:
        if ready:
            made.host.ready(made.backend)
            assert until(lambda: made.states and made.states[-1]["state"] == "ready")
        yield made
    finally:
        made.host.drain()
        made.host.drain()
        made.thread.join(30)
        made.listener.close()
        while RawClient.made:
            RawClient.made.pop().close()
        assert not made.thread.is_alive()
