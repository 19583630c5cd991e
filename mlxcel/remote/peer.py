"""One client of the engine process: its requests, and what waits to be sent to it.

Everything here runs on the host's thread, except the methods of `Job` that the engine's
thread calls; those only append to a queue.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mlxcel.errors import CapacityError, EngineError, MlxcelError, RequestError
from mlxcel.front import Ticket
from mlxcel.remote.wire import ANSWER_LIMIT, REQUEST_LIMIT, Frames, Message, pack
from mlxcel.remote.wire_types import encode_chunk, encode_error
from mlxcel.types import Chunk

__all__ = ["Job", "Peer"]

READ_BYTES = 1 << 18
MOST_WORDS = 1000
"""Answers other than chunks that may wait, or be in the making, before no more is read."""

PER_FRAME = 256
"""Chunks in one frame at most: what a slow reader has not taken stays small."""


class Job(Ticket):
    """A request of a client.

    Parameters
    ----------
    peer : Peer
        Whose it is.
    number : int
        What the client calls it.
    outbound : deque
        Takes ``(job, news)``: an engine's request id, a chunk, or an error.
    news : callable
        Called after news that no `Watcher.delivered` follows.
    """

    def __init__(
        self,
        peer: Peer,
        number: int,
        outbound: deque[tuple[Job, int | Chunk | BaseException]],
        news: Callable[[], None],
    ) -> None:  # no queue and no future of its own: it passes everything on
        self.peer = peer
        self.number = number
        self.withdrawn = False
        self.stream = True
        self.unsent = 0  # chunks that the socket has not taken
        self._outbound = outbound
        self._news = news

    def accept(self, request_id: int) -> None:
        """The engine has taken the request."""
        self._outbound.append((self, request_id))
        self._news()

    def refuse(self, error: BaseException) -> None:
        """The engine has not taken the request."""
        self.fail(error)

    def deliver(self, chunk: Chunk) -> None:
        """A piece of the answer; goes out with the others of its step."""
        if self.stream or chunk.completion is not None:
            self._outbound.append((self, chunk))

    def fail(self, error: BaseException) -> None:
        """No more pieces will come."""
        self._outbound.append((self, error))
        self._news()


class Peer:
    """A connection.

    Parameters
    ----------
    sock : socket
        Connected.
    buffer : int
        Chunks of one request that may wait.
    too_slow : callable
        Cancels a request for which more would wait.
    """

    def __init__(
        self, sock: socket.socket, buffer: int, too_slow: Callable[[Job], None]
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.jobs: dict[int, Job] = {}
        self.greeted = False
        self.closed = False
        self.closing = False  # when what waits has been sent
        self.asks = 0  # questions that are being answered
        self.watched = 0  # events that the selector waits for
        self._bound = buffer
        self._too_slow = too_slow
        self._frames = Frames(REQUEST_LIMIT)
        self._waiting: deque[tuple[Job, Chunk] | bytes] = deque()
        self._buffer = memoryview(b"")
        self._words = 0
        self._sending: list[Job] = []  # a job for every chunk in the buffer

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._buffer and not self._waiting

    @property
    def congested(self) -> bool:
        """Whether this client asks faster than it reads."""
        return self._words + self.asks >= MOST_WORDS

    def read(self) -> list[Message]:
        """Messages that have come.

        Raises
        ------
        WireError
            They are none.
        OSError
            The connection is lost.
        """
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the client has closed the connection")
        return self._frames.feed(data)

    def say(self, message: Message) -> None:
        """Queue a message; `flush` sends it."""
        self.say_packed(pack(message, ANSWER_LIMIT))

    def say_packed(self, frame: bytes) -> None:
        """Queue a message that has been packed."""
        self._words += 1
        self._waiting.append(frame)

    def news(self, job: Job, news: int | Chunk | BaseException) -> None:
        """Queue what the engine says about a request of this client.

        Raises
        ------
        OSError
            The connection is lost.
        """
        if self.jobs.get(job.number) is not job:
            return  # it has ended here already
        if isinstance(news, int):
            self.say(["accepted", job.number, news])
        elif isinstance(news, BaseException):
            self.end(job, news)
        else:
            self._piece(job, news)

    def _piece(self, job: Job, chunk: Chunk) -> None:
        if chunk.completion is not None:
            del self.jobs[job.number]
        elif job.unsent >= self._bound:
            self.flush()  # perhaps it is this thread that was slow
            if job.unsent >= self._bound:
                self._too_slow(job)
                self.end(job, CapacityError(
                    f"the client reads too slowly: {job.unsent} pieces of the answer wait for it, "
                    "so the request was cancelled; read faster or raise MLXCEL_CLIENT_BUFFER"
                ))  # fmt: skip
                return
        job.unsent += 1
        self._waiting.append((job, chunk))

    def end(self, job: Job, error: BaseException) -> None:
        """End a request of this client with an error."""
        del self.jobs[job.number]
        if not isinstance(error, MlxcelError):
            error = EngineError(f"the engine failed: {type(error).__name__}: {error}")
        self.say(["failed", job.number, encode_error(error)])

    def flush(self) -> None:
        """Send what the socket takes now.

        Raises
        ------
        OSError
            The connection is lost.
        """
        while not self.idle:
            if not self._buffer:
                self._buffer = memoryview(self._encode())
            try:
                sent = self.sock.send(self._buffer)
            except BlockingIOError:
                return
            self._buffer = self._buffer[sent:]
            if not self._buffer:
                for job in self._sending:
                    job.unsent -= 1
                self._sending = []

    def _encode(self) -> bytes:
        """Frames of what waits: chunks next to each other share one."""
        parts: list[bytes] = []
        chunks: list[Any] = []
        while self._waiting and len(self._sending) < PER_FRAME:
            item = self._waiting.popleft()
            if isinstance(item, bytes):
                self._words -= 1
                parts += [*self._frame_of(chunks), item]
                chunks = []
                continue
            job, chunk = item
            self._sending.append(job)
            if not job.stream:  # nobody reads the pieces: the completion has it all
                chunk = replace(chunk, text="", token_ids=(), drafted=(), logprobs=None)
            chunks.append([job.number, encode_chunk(chunk)])
        return b"".join([*parts, *self._frame_of(chunks)])

    def _frame_of(self, chunks: list[Any]) -> list[bytes]:
        if not chunks:
            return []
        try:
            return [pack(["chunks", chunks], ANSWER_LIMIT)]
        except RequestError as error:
            if len(chunks) == 1:
                said = encode_error(EngineError(f"the answer cannot be sent: {error.message}"))
                return [pack(["failed", chunks[0][0], said], ANSWER_LIMIT)]
        return [part for chunk in chunks for part in self._frame_of([chunk])]
