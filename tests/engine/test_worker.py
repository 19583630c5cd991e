"""The engine's thread: tickets that are told, requests withdrawn early, and its watcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.worker import EngineThread, Ticket
from mlxcel.errors import EngineError
from mlxcel.types import Chunk, Request, SamplingParams
from tests.support import tiny
from tests.support.hosting import until

SETTINGS = Settings(length_step=64, prefill_chunk=16)


def build() -> Engine:
    return Engine(tiny.loaded(tiny.llama_model()), None, SETTINGS)


def request(tokens: int = 5) -> Request:
    return Request(prompt_ids=(3, 9), params=SamplingParams(max_tokens=tokens))


class Notes:
    """A watcher, and tickets that write into the same list."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def delivered(self) -> None:
        self.said.append("delivered")

    def failed(self, reason: str) -> None:
        self.said.append(f"failed: {reason}")

    def ticket(self, name: str) -> Ticket:
        said = self.said

        class Noted(Ticket):
            def accept(self, request_id: int) -> None:
                said.append(f"{name} accepted")

            def refuse(self, error: BaseException) -> None:
                said.append(f"{name} refused: {error}")

            def deliver(self, chunk: Chunk) -> None:
                said.append(f"{name} last" if chunk.completion else name)

            def fail(self, error: BaseException) -> None:
                said.append(f"{name} failed: {error}")

        return Noted()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def thread(notes: Notes) -> Iterator[EngineThread]:
    made = EngineThread(build, notes)
    yield made
    made.close()


def hold(thread: EngineThread) -> threading.Event:
    """Keep the thread busy until the event is set."""
    event = threading.Event()

    def wait() -> None:
        event.wait(10)

    thread._send(wait)
    return event


def test_the_watcher_is_told_once_per_step(thread: EngineThread, notes: Notes) -> None:
    go = hold(thread)
    for name in "ab":
        thread.post(request(), notes.ticket(name))
    assert notes.said == []  # `post` waits for nothing
    go.set()
    assert until(lambda: {"a last", "b last"} <= set(notes.said) and notes.said[-1] == "delivered")
    assert notes.said[:2] == ["a accepted", "b accepted"]
    steps = " ".join(notes.said[2:]).split(" delivered")
    assert "a b" in [step.strip() for step in steps]  # both rows, then one word
    assert all(len(step.split()) <= 4 for step in steps)
    assert notes.said.count("delivered") < len(notes.said) - 3


def test_a_request_withdrawn_early_is_never_begun(thread: EngineThread, notes: Notes) -> None:
    go = hold(thread)
    ticket = notes.ticket("a")
    thread.post(request(1000), ticket)
    thread.cancel(ticket)
    go.set()
    assert until(lambda: notes.said)
    assert notes.said == ["a refused: the request was cancelled before it began"]
    assert thread.call(lambda engine: engine.scheduler.table.admitted) == 0


def test_cancelling_what_has_ended_or_was_never_known(thread: EngineThread) -> None:
    ticket = thread.submit(request())
    while ticket.chunks.get().completion is None:  # type: ignore[union-attr]
        pass
    thread.cancel(ticket)
    thread.cancel(Ticket())
    assert thread.call(lambda engine: engine.busy) is False
    assert thread.running == 0


def test_running_is_known_without_asking(thread: EngineThread) -> None:
    ticket = thread.submit(request(3000))
    assert until(lambda: thread.running == 1)
    thread.cancel(ticket)
    assert until(lambda: thread.running == 0)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), TypeError("a bug")])
def test_failure_is_told_after_the_last_chunks(
    thread: EngineThread, notes: Notes, error: Exception
) -> None:
    def verify(*args: Any, **options: Any) -> Any:
        raise error

    thread.call(lambda engine: setattr(engine.batch, "verify", verify))
    thread.post(request(), notes.ticket("a"))
    assert until(lambda: str(notes.said[-1:]).startswith("['failed: "))
    assert str(error) in notes.said[-1]
    ended = [said for said in notes.said if said.startswith(("a last", "a failed"))]
    assert len(ended) == 1


def test_closing_is_no_failure(thread: EngineThread, notes: Notes) -> None:
    thread.post(request(3000), notes.ticket("a"))
    assert until(lambda: "a" in notes.said)
    thread.close()
    assert notes.said[-1].startswith("a failed: the engine was closed")
    with pytest.raises(EngineError, match="closed"):
        thread.post(request(), notes.ticket("b"))
