"""One HTTP request's answers: submitted together, read as one, cancelled when nobody listens."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from flask import Response, current_app, request

from mlxcel.errors import EngineError
from mlxcel.types import Chunk, Completion
from webapp.engine import holder
from webapp.errors import ApiError, described
from webapp.limits import gone
from webapp.sse import COMMENT, event, stream_response

__all__ = ["Generation", "check_model", "served_names"]

ERROR = partial(event, "error")

TICK = 0.25
"""Seconds between looks at a silent request's client: is it still there?"""


def served_names() -> tuple[str, ...]:
    """What the model is called: first for clients, then by the engine."""
    made = holder()
    named, own = made.config.model_name, str(made.front.facts["model"])
    return (named, own) if named and named != own else (own,)


def check_model(asked: str | None) -> str:
    """The name to answer with.

    Raises
    ------
    ApiError
        404: another model is asked for.
    """
    names = served_names()
    if asked is not None and asked not in names:
        raise ApiError(
            404, f"there is no model {asked[:200]!r} here: it is called {' or '.join(names)}",
            param="model", code="model_not_found",
        )  # fmt: skip
    return asked or names[0]


class Generation:
    """Streams of one request. Used as a context, which ends them unless a response takes over.

    Making one takes a place among those that may run at once.

    Raises
    ------
    ApiError
        429: there is no place.
    """

    def __init__(self) -> None:
        self._give_back = current_app.extensions["mlxcel-slots"].take()
        self._holder = holder()
        self._environ = request.environ
        self._streams: list[Any] = []
        self._kept = False
        self._stopped = threading.Event()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self.close()

    def add(self, prompt_ids: Sequence[int], arguments: dict[str, Any], *, pieces: bool) -> None:
        """Submit a request; return when the engine has taken it.

        Parameters
        ----------
        prompt_ids : sequence of int
            The prompt.
        arguments : dict
            Others of `Front.stream`.
        pieces : bool
            Whether the pieces are read, or the completion alone.

        Raises
        ------
        MlxcelError
            It is refused.
        """
        self._streams.append(self._holder.front.stream(prompt_ids, pieces=pieces, **arguments))

    def add_choices(
        self, prompt_ids: Sequence[int], count: int, arguments: dict[str, Any], *, pieces: bool
    ) -> None:
        """Submit a request several times: with the seed, the seed + 1, and so on."""
        seed = arguments.pop("seed", None)
        for at in range(count):
            seeded = {} if seed is None else {"seed": (seed + at) % 2**64}
            self.add(prompt_ids, arguments | seeded, pieces=pieces)

    def chunks(self) -> Iterator[tuple[int, Chunk] | None]:
        """Chunks with the number of their stream; ``None`` after every so many silent seconds.

        Raises
        ------
        ApiError
            408: the time is up, or the client has gone; 503: the engine ended it.
        MlxcelError
            The engine failed.
        """
        left, heard = len(self._streams), time.monotonic()
        read = self._poll_one if left == 1 else self._merged()
        while left:
            item = read()
            now = time.monotonic()
            if item is None:
                if gone(self._environ):
                    raise ApiError(408, "the client has closed the connection", code="gone")
                if now - heard >= self._holder.config.keep_alive:
                    heard = now
                    yield None
                continue
            heard = now
            if item[1].completion is not None:
                _check(item[1].completion)
                left -= 1
            yield item

    def completions(self) -> list[Completion]:
        """Wait for all answers."""
        done: dict[int, Completion] = {}
        for item in self.chunks():
            if item is not None and item[1].completion is not None:
                done[item[0]] = item[1].completion
        return [done[at] for at in sorted(done)]

    def frames(
        self,
        write: Callable[[int, Chunk], Iterator[str]],
        closing: Callable[[], Iterator[str]],
        *,
        opening: str = "",
        silence: str = COMMENT,
        failure: Callable[[dict[str, Any]], str] = ERROR,
    ) -> Iterator[str]:
        """What a stream sends; an error that comes too late for a status is its last event.

        Parameters
        ----------
        write : callable
            Frames of a chunk of one of the answers.
        closing : callable
            Frames after the last chunk.
        opening : str
            The first frame.
        silence : str
            Keeps the connection while nothing happens.
        failure : callable
            The frame of an error.
        """
        try:
            if opening:
                yield opening
            for item in self.chunks():
                if item is None:
                    yield silence
                else:
                    yield from write(*item)
            yield from closing()
        except Exception as error:  # noqa: BLE001 - the client is told, and unknown ones are logged
            yield failure(described(error).body())
        finally:
            self.close()

    def respond(self, frames: Iterator[str]) -> Response:
        """A response that streams, and cancels what still runs when it ends or is dropped."""
        response = stream_response(frames)
        response.call_on_close(self.close)
        self._kept = True
        return response

    def close(self) -> None:
        """Cancel what still runs and give the place back. Idempotent."""
        self._stopped.set()
        for stream in self._streams:
            stream.close()
        self._give_back()

    def _poll_one(self) -> tuple[int, Chunk] | None:
        chunk = self._streams[0].poll(TICK)
        return None if chunk is None else (0, chunk)

    def _merged(self) -> Any:
        """A reader of all streams: a thread each passes their chunks into one queue."""
        merged: queue.SimpleQueue[tuple[int, Chunk] | BaseException] = queue.SimpleQueue()

        def pump(at: int, stream: Any) -> None:
            try:
                while not self._stopped.is_set() and not stream.ended:
                    chunk = stream.poll(TICK)
                    if chunk is not None:
                        merged.put((at, chunk))
            except Exception as error:  # noqa: BLE001 - it is raised where it is read
                merged.put(error)

        for at, stream in enumerate(self._streams):
            threading.Thread(target=pump, args=(at, stream), daemon=True).start()

        def read() -> tuple[int, Chunk] | None:
            try:
                item = merged.get(timeout=TICK)
            except queue.Empty:
                return None
            if isinstance(item, BaseException):
                raise item
            return item

        return read


def _check(done: Completion) -> None:
    """Raise where an answer has not come to its own end."""
    if done.finish_reason == "timeout":
        raise ApiError(
            408,
            f"the time is up after {done.usage.completion_tokens} tokens: ask for fewer, or allow "
            "more with timeout, up to the server's limit",
        )
    if done.finish_reason == "error":
        raise done.failure()
    if done.finish_reason == "cancelled":
        raise EngineError("the engine cancelled the request: it shuts down")
