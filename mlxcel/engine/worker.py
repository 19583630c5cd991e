"""The engine's own thread: it loads the models, runs every MLX call, and answers by queues.

MLX streams belong to the thread that made them, so nothing of an engine may be touched
from another thread. Callers on any number of threads submit requests and read chunks.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

from mlxcel.engine.engine import Engine
from mlxcel.errors import EngineError
from mlxcel.front import Ticket
from mlxcel.types import Chunk, Request

__all__ = ["EngineThread", "Ticket", "Watcher"]

log = logging.getLogger(__name__)

REST_SECONDS = 1.0
"""Time without requests after which the engine may use it: a chat's next turn comes later."""

T = TypeVar("T")
Command = Callable[[], None]


class Watcher(Protocol):
    """Is told what the engine's thread does, on that thread; must not wait."""

    def delivered(self) -> None:
        """All chunks of one step have been given to their tickets."""

    def failed(self, reason: str) -> None:
        """The engine has failed; the chunks that say so have been delivered."""


class EngineThread:
    """Runs an engine on a thread of its own.

    Parameters
    ----------
    build : callable
        Makes the engine; called on the thread.
    watcher : Watcher, optional
        Is told about deliveries and failure.

    Raises
    ------
    MlxcelError
        What ``build`` raised.
    """

    def __init__(self, build: Callable[[], Engine], watcher: Watcher | None = None) -> None:
        self._watcher = watcher
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}
        self._engine: Engine | None = None
        self._closed = False
        self._lock = threading.RLock()  # a finaliser may cancel while it is held
        self._ended = threading.Event()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(build, started), name="mlxcel-engine", daemon=True
        )
        atexit.register(self.close)
        self._thread.start()
        started.result()

    def submit(self, request: Request) -> Ticket:
        """Queue a request and wait until the engine has taken it. Any thread.

        Raises
        ------
        RequestError
            The request does not fit the model.
        EngineError
            The engine is closed or has failed.
        """
        ticket = Ticket()
        self.post(request, ticket)
        ticket.request_id.result()
        return ticket

    def post(self, request: Request, ticket: Ticket) -> None:
        """Queue a request without waiting; the ticket is told what comes of it. Any thread.

        Raises
        ------
        EngineError
            The engine is closed.
        """
        self._send(lambda: self._add(request, ticket))

    def cancel(self, ticket: Ticket) -> None:
        """End a request early; its last chunk says so. Any thread.

        One that the engine has not seen yet is never begun.
        """
        ticket.withdrawn = True
        with suppress(EngineError):  # closed: it has ended already
            self._send(lambda: self._cancel(ticket))

    @property
    def running(self) -> int:
        """Rows that decode now. Any thread."""
        engine = self._engine
        return 0 if engine is None else len(engine.scheduler.running)

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the engine's thread and return its result. Any thread."""
        result: Future[T] = Future()

        def command() -> None:
            assert self._engine is not None
            try:
                result.set_result(function(self._engine))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                result.set_exception(error)

        self._send(command)
        return result.result()

    def close(self) -> None:
        """Stop the thread; unfinished requests end with an error. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._ended.wait()  # a second interrupt may break this; at exit it is waited again
        atexit.unregister(self.close)

    def _send(self, command: Command) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed: load the model again")
            self._commands.put(command)

    # -- on the thread ----------------------------------------------------------------

    def _run(self, build: Callable[[], Engine], started: Future[None]) -> None:
        try:
            self._work(build, started)
        finally:
            self._ended.set()
        # MLX's compile cache belongs to the thread, and its destructor takes the GIL: a thread
        # that ends while the interpreter does aborts the process. So it sleeps instead.
        threading.Event().wait()

    def _work(self, build: Callable[[], Engine], started: Future[None]) -> None:
        try:
            self._engine = build()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._closed = True
            started.set_exception(error)
            return
        started.set_result(None)
        reason, closing = "the engine was closed before the request ended", False
        try:
            while self._serve(self._engine):
                pass
            closing = True
        except Exception as error:
            log.exception("the engine's thread has failed")
            reason = f"the engine has failed: {error}; load the model again"
        finally:
            self._abandon(EngineError(reason))
            self._engine = None
        if not closing and self._watcher is not None:
            self._watcher.failed(reason)

    def _serve(self, engine: Engine) -> bool:
        """Take commands, then one step; return whether to go on."""
        while not (self._commands.empty() and engine.busy):
            command = self._next_command(engine)
            if command is None:
                return False
            command()
        try:
            self._deliver(engine.step())
        except EngineError as error:
            log.error("%s", error)
            if engine.busy:
                self._deliver(engine.step())
            if self._watcher is not None:
                self._watcher.failed(str(error))
        return True

    def _next_command(self, engine: Engine) -> Command | None:
        """Wait for a command; the engine has its own use for a longer wait."""
        resting = not engine.busy
        while resting:
            with suppress(queue.Empty):
                return self._commands.get(timeout=REST_SECONDS)
            while resting and self._commands.empty():
                resting = engine.rest(lambda: not self._commands.empty())
        return self._commands.get()

    def _deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            ticket = self._tickets.get(chunk.request_id)
            if ticket is not None:
                ticket.deliver(chunk)
                if chunk.completion is not None:
                    del self._tickets[chunk.request_id]
        if chunks and self._watcher is not None:
            self._watcher.delivered()

    def _add(self, request: Request, ticket: Ticket) -> None:
        assert self._engine is not None
        if ticket.withdrawn:
            ticket.refuse(EngineError("the request was cancelled before it began"))
            return
        try:
            request_id = self._engine.add(request)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            ticket.refuse(error)
            return
        self._tickets[request_id] = ticket
        ticket.accept(request_id)

    def _cancel(self, ticket: Ticket) -> None:
        assert self._engine is not None
        for request_id, known in self._tickets.items():
            if known is ticket:
                self._engine.cancel(request_id)
                return

    def _abandon(self, error: EngineError) -> None:
        with self._lock:
            self._closed = True
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for ticket in self._tickets.values():
            ticket.fail(error)
        self._tickets.clear()
