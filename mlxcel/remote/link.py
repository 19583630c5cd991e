"""A client's connection: one receiver thread, many requests, and the news of its end.

Nothing is sent again after a connection was lost: the engine may have begun the work, and a
caller knows better whether to ask once more.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxcel.errors import CapacityError, EngineError, MlxcelError
from mlxcel.front import Ticket
from mlxcel.remote.address import checked_path
from mlxcel.remote.wire import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    Frames,
    Message,
    WireError,
    hello,
    mismatch,
    pack,
)
from mlxcel.remote.wire_types import decode_chunk, decode_error
from mlxcel.types import Chunk

__all__ = ["Link", "RemoteTicket"]

log = logging.getLogger(__name__)

READ_BYTES = 1 << 18
QUEUE_SECONDS = 0.02
"""Pause between attempts while the queue of connections is full."""


class RemoteTicket(Ticket):
    """A request at an engine in another process.

    Parameters
    ----------
    link : Link
        The connection it was submitted on.
    number : int
        Its number there.
    bound : int
        Pieces that may wait for the reader.
    """

    def __init__(self, link: Link, number: int, bound: int) -> None:
        super().__init__()
        self.link = link
        self.number = number
        self._bound = bound

    def accept(self, request_id: int) -> None:
        """The engine has taken the request; the connection may have ended meanwhile."""
        with suppress(InvalidStateError):
            super().accept(request_id)

    def deliver(self, chunk: Chunk) -> None:
        """A piece of the answer; cancels the request if its reader takes none."""
        if chunk.completion is None and self.chunks.qsize() >= self._bound:
            self.link.cancel(self)
            self.fail(CapacityError(
                f"the stream is read too slowly: {self._bound} pieces of the answer wait, so the "
                "request was cancelled; read faster or raise MLXCEL_CLIENT_BUFFER of the engine"
            ))  # fmt: skip
            return
        super().deliver(chunk)

    def fail(self, error: BaseException) -> None:
        """No more pieces will come; also whoever waits for the engine to take it is told."""
        with suppress(InvalidStateError):
            self.request_id.set_exception(error)
        super().fail(error)


class Link:
    """A connection to an engine. All methods may be called from any thread.

    Parameters
    ----------
    path : Path
        The engine's socket.
    patience : float
        Seconds to wait for a place in a full queue of connections.

    Raises
    ------
    EngineError
        Nothing listens there.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.process = os.getpid()
        self.state: dict[str, Any] = {"state": "connecting"}
        self.changed = threading.Condition()
        self.error: MlxcelError | None = None
        self.lost = False  # the other side has ended, which a new connection may mend
        self._path = path
        self._bound = 1
        self._numbers = itertools.count()
        self._waiting: dict[int, RemoteTicket | Future[Any]] = {}
        self._outgoing: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._sock = self._connect(patience)
        self.send(hello())
        threading.Thread(target=self._receive, name="mlxcel-client", daemon=True).start()

    def _connect(self, patience: float) -> socket.socket:
        path, end = str(checked_path(self._path)), time.monotonic() + patience
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)  # else a full queue would be waited for without end
                sock.connect(path)
                sock.setblocking(True)
            except OSError as error:
                sock.close()
                if isinstance(error, BlockingIOError) and time.monotonic() < end:
                    time.sleep(QUEUE_SECONDS)
                    continue
                raise EngineError(
                    f"no engine listens at {path} ({error.strerror or error}): start one with "
                    "mlxcel engine, or name its socket"
                ) from error
            return sock

    def wait_for_change(self, state: dict[str, Any], seconds: float) -> bool:
        """Wait until the engine's state is another one or the connection has ended."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self.error is not None or self.state is not state, max(seconds, 0.0)
            )

    def submit(self, plain: dict[str, Any]) -> RemoteTicket:
        """Send a request; the ticket is told what comes of it."""
        number = next(self._numbers)
        ticket = RemoteTicket(self, number, self._bound)
        self._register(number, ticket, ["submit", number, plain])
        return ticket

    def cancel(self, ticket: RemoteTicket) -> None:
        """Tell the engine that nobody wants a request any longer; never waits."""
        if self._waiting.pop(ticket.number, None) is not None and self.process == os.getpid():
            with suppress(MlxcelError):
                self.send(["cancel", ticket.number])

    def ask(self, name: str, *arguments: Any) -> Future[Any]:
        """Send a question; the future gets its answer."""
        number = next(self._numbers)
        answer: Future[Any] = Future()
        self._register(number, answer, ["call", number, name, list(arguments)])
        return answer

    def close(self, error: MlxcelError) -> None:
        """End the connection; everyone who waits gets the error. Idempotent."""
        with self.changed:
            if self.error is not None:
                return
            self.error = error
            self.changed.notify_all()
        if self.process == os.getpid():  # a fork shares the connection with its parent
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        while self._waiting:
            with suppress(KeyError):  # the receiver takes from it too: each is told by one of us
                _, each = self._waiting.popitem()
                self._end(each, error)

    @staticmethod
    def _end(each: RemoteTicket | Future[Any], error: MlxcelError) -> None:
        if isinstance(each, RemoteTicket):
            each.fail(error)
        else:
            each.set_exception(error)

    def send(self, message: Message) -> None:
        """Send a message. May be called by a finaliser, in the middle of another send.

        Raises
        ------
        RequestError
            It has no form in msgpack.
        """
        self._outgoing.append(pack(message, REQUEST_LIMIT))
        # Whoever has the lock sends what others have queued: nobody waits for it.
        while self._outgoing and self._sending.acquire(blocking=False):
            try:
                while self._outgoing:
                    self._sock.sendall(self._outgoing.popleft())
            except OSError as error:
                self.close(self._lost(error))
                return
            finally:
                self._sending.release()

    def _register(self, number: int, who: RemoteTicket | Future[Any], message: Message) -> None:
        with self.changed:
            if self.error is not None:
                raise self.error
            self._waiting[number] = who
        try:
            self.send(message)
        except MlxcelError:
            self._waiting.pop(number, None)
            raise

    def _lost(self, error: OSError | None = None) -> EngineError:
        self.lost = True
        if self.state["state"] == "draining":
            return EngineError("the engine has shut down")
        if self.state["state"] == "failed":
            return EngineError(f"the engine has failed: {decode_error(self.state['error'])}")
        detail = f" ({error.strerror or error})" if error is not None else ""
        return EngineError(
            f"the engine process at {self._path} has ended or died{detail}: the request is lost, "
            "send it again"
        )

    # -- the receiver's thread -------------------------------------------------------

    def _receive(self) -> None:
        frames = Frames(ANSWER_LIMIT)
        try:
            while data := self._sock.recv(READ_BYTES):
                for message in frames.feed(data):
                    self._take(message)
            self.close(self._lost())
        except OSError as error:
            self.close(self._lost(error))
        except (WireError, ValueError, TypeError, LookupError) as error:
            self.close(EngineError(f"the engine at {self._path} is not understood: {error}"))
        finally:
            self._sock.close()

    def _take(self, message: Message) -> None:
        match message:
            case ["chunks", [*chunks]]:
                for number, plain in chunks:
                    self._deliver(number, decode_chunk(plain))
            case ["accepted", int(number), int(request_id)]:
                ticket = self._waiting.get(number)
                if isinstance(ticket, RemoteTicket):
                    ticket.accept(request_id)
            case ["result", int(number), value]:
                answer = self._waiting.pop(number, None)
                if isinstance(answer, Future):
                    answer.set_result(value)
            case ["failed", int(number), error]:
                self._fail(number, decode_error(error))
            case ["state", dict(state)]:
                self._enter(state)
            case ["refused", error]:
                self.close(decode_error(error))
            case ["hello", *_]:
                self._greeted(message)
            case _:
                raise WireError(f"unknown message {message!r:.100}")

    def _deliver(self, number: int, chunk: Chunk) -> None:
        ticket = self._waiting.get(number)
        if not isinstance(ticket, RemoteTicket):
            return  # cancelled here a moment ago
        if chunk.completion is not None:
            self._waiting.pop(number, None)
        ticket.deliver(chunk)

    def _fail(self, number: int, error: MlxcelError) -> None:
        waiter = self._waiting.pop(number, None)
        if waiter is not None:
            self._end(waiter, error)

    def _greeted(self, message: Message) -> None:
        if wrong := mismatch(message, "client", "engine"):
            self.close(EngineError(wrong))
            return
        self._bound = int(message[1]["buffer"])
        self._enter(dict(message[1]["state"]))

    def _enter(self, state: dict[str, Any]) -> None:
        with self.changed:
            self.state = state
            self.changed.notify_all()
