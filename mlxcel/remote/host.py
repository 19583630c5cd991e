"""The engine process's I/O: one thread serves all clients and never waits for one.

The engine's thread appends news to a queue and wakes this one once per step; each client
then gets its chunks of that step in a single send. What takes time is the `Desk`'s.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mlxcel.errors import CapacityError, EngineError, MlxcelError, RequestError
from mlxcel.remote.desk import Backend, Desk
from mlxcel.remote.peer import Job, Peer
from mlxcel.remote.wire import Message, WireError, hello, mismatch
from mlxcel.remote.wire_types import encode_error
from mlxcel.types import Chunk

__all__ = ["Host"]

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.1
FLUSH_SECONDS = 1.0
"""How long the last words may take when the process ends."""

class Host:
    """Serves clients at a listening socket until it is told to end.

    Parameters
    ----------
    listener : socket
        Listening.
    buffer : int
        Chunks of one request that may wait for its client.
    drain_seconds : float
        How long running requests may go on after `drain`.
    on_state : callable, optional
        Is told every new state, on the host's thread.
    max_peers : int
        Connections at most.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        buffer: int,
        drain_seconds: float,
        on_state: Callable[[dict[str, Any]], None] = lambda state: None,
        max_peers: int = 1000,
    ) -> None:
        self.buffer = buffer
        self.state: dict[str, Any] = _loading("starting", 0, 0)
        self._listener = listener
        self._drain_seconds = drain_seconds
        self._on_state = on_state
        self._max_peers = max_peers
        self._peers: set[Peer] = set()
        self._outbound: deque[tuple[Job, int | Chunk | BaseException]] = deque()
        self._actions: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._woken = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._deadline: float | None = None
        self._exit: int | None = None
        self._shown = 0.0
        self._began = time.monotonic()
        self._slow = 0
        self._desk = Desk(self._reply)

    # -- any thread ------------------------------------------------------------------

    def delivered(self) -> None:
        """A step's chunks have been queued (`Watcher.delivered`)."""
        if self._outbound:
            self._wake()

    def failed(self, reason: str) -> None:
        """The engine has failed (`Watcher.failed`): say so and end with status 70."""
        self.post(lambda: self._fail(EngineError(reason), os.EX_SOFTWARE))

    def ready(self, backend: Backend) -> None:
        """The model is loaded."""
        self.post(lambda: self._be_ready(backend))

    def load_failed(self, error: MlxcelError) -> None:
        """The model cannot be loaded: say so and end with status 78."""
        self.post(lambda: self._fail(error, os.EX_CONFIG))

    def progress(self, label: str, done: int, total: int) -> None:
        """Loading goes on."""
        now = time.monotonic()
        if done < total and now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        self.post(lambda: self._progress(_loading(label, done, total)))

    def drain(self) -> None:
        """End in order: no new requests; a second call cancels those that run. Signal-safe."""
        self.post(self._drain)

    def post(self, action: Callable[[], None]) -> None:
        """Run something on the host's thread."""
        self._actions.append(action)
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            with suppress(OSError):
                self._wake_out.send(b"\0")

    # -- the host's thread -----------------------------------------------------------

    def run(self) -> int:
        """Serve; return the status with which the process should end."""
        self._listener.setblocking(False)
        for sock in (self._listener, self._wake_in):
            self._selector.register(sock, selectors.EVENT_READ)
        self._enter(self.state)
        while self._exit is None:
            for key, events in self._selector.select(self._patience()):
                if key.fileobj is self._listener:
                    self._greet()
                elif key.fileobj is self._wake_in:
                    self._wake_in.recv(64)
                else:
                    self._serve(key.data, events)
            self._woken = False  # before looking, so that nothing is overlooked
            while self._actions:
                self._actions.popleft()()
            self._distribute()
            self._check_drained()
        self._part()
        return self._exit

    def too_slow(self, job: Job) -> None:
        """Cancel a request whose client does not take its answer."""
        self._slow += 1
        self._desk.withdraw(job)

    def _patience(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _greet(self) -> None:
        """Take connections; those above the limit are told so."""
        with suppress(BlockingIOError):
            while True:
                try:
                    sock, _ = self._listener.accept()
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    log.error("a connection could not be taken: %s", error)
                    time.sleep(0.01)  # out of descriptors: no busy loop while it lasts
                    return
                peer = Peer(sock, self)
                self._peers.add(peer)
                self._watch(peer, selectors.EVENT_READ)
                if len(self._peers) > self._max_peers:
                    said = f"the engine has {self._max_peers} connections and takes no more now"
                    self._refuse(peer, CapacityError(said))

    def _serve(self, peer: Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                for message in peer.read():
                    if not peer.closing:
                        self._take(peer, message)
            self._flush(peer)
        except WireError as error:
            self._refuse(peer, RequestError(f"the engine does not understand its client: {error}"))
        except OSError:
            self._lose(peer)

    def _take(self, peer: Peer, message: Message) -> None:
        if not peer.greeted:
            if wrong := mismatch(message, "engine", "client"):
                self._refuse(peer, RequestError(wrong, param="protocol"))
                return
            peer.greeted = True
            peer.say(hello(buffer=self.buffer, pid=os.getpid(), state=self.state))
            return
        match message:
            case ["submit", int(number), asked] if number not in peer.jobs:
                self._desk.submit(Job(peer, number, self._outbound, self._wake), asked, self.state)
            case ["cancel", int(number)]:
                job = peer.jobs.pop(number, None)
                if job is not None:
                    self._desk.withdraw(job)
            case ["call", int(number), "status", []]:
                peer.say(["result", number, self._status()])
            case ["call", int(number), str(name), list(arguments)]:
                peer.asks += 1
                self._desk.ask(peer, number, name, arguments)
            case _:
                raise WireError(f"unknown or misused message {message!r:.100}")

    def _reply(self, peer: Peer, frame: bytes) -> None:
        """Send a client an answer of a worker thread, from any thread."""

        def reply() -> None:
            peer.asks -= 1
            peer.say_packed(frame)
            self._try_flush(peer)

        self.post(reply)

    def _distribute(self) -> None:
        """Give news to the clients they are for; each is sent its part at once."""
        touched: dict[Peer, None] = {}
        while self._outbound:
            job, news = self._outbound.popleft()
            if job.peer.closed:
                continue
            touched[job.peer] = None
            try:
                job.peer.news(job, news)
            except OSError:
                self._lose(job.peer)
        for peer in touched:
            self._try_flush(peer)

    def _try_flush(self, peer: Peer) -> None:
        try:
            if not peer.closed:
                self._flush(peer)
        except OSError:
            self._lose(peer)

    def _flush(self, peer: Peer) -> None:
        peer.flush()
        if peer.closing and peer.idle:
            self._lose(peer)
            return
        events = 0 if peer.congested else selectors.EVENT_READ
        events |= 0 if peer.idle else selectors.EVENT_WRITE
        if events != peer.watched:
            self._watch(peer, events)

    def _watch(self, peer: Peer, events: int) -> None:
        """Wait for other events of a client; for none, it is not in the selector at all."""
        if not peer.watched:
            self._selector.register(peer.sock, events, peer)
        elif events:
            self._selector.modify(peer.sock, events, peer)
        else:
            self._selector.unregister(peer.sock)
        peer.watched = events

    def _refuse(self, peer: Peer, error: MlxcelError) -> None:
        """Tell one client what is wrong with it, then close its connection."""
        log.warning("a client is sent away: %s", error.message)
        self._abandon(peer)
        peer.say(["refused", encode_error(error)])
        peer.closing = True
        self._try_flush(peer)

    def _lose(self, peer: Peer) -> None:
        """A connection has ended: so have its requests."""
        if peer.closed:
            return
        peer.closed = True
        self._peers.discard(peer)
        if peer.watched:
            self._watch(peer, 0)
        peer.sock.close()
        self._abandon(peer)

    def _abandon(self, peer: Peer) -> None:
        for job in list(peer.jobs.values()):
            self._desk.withdraw(job)
        peer.jobs.clear()

    # -- states ----------------------------------------------------------------------

    def _enter(self, state: dict[str, Any]) -> None:
        self.state = state
        self._on_state(state)
        for peer in list(self._peers):
            if peer.greeted:
                peer.say(["state", state])
                self._try_flush(peer)

    def _progress(self, state: dict[str, Any]) -> None:
        if self.state["state"] == "loading":
            self._enter(state)

    def _be_ready(self, backend: Backend) -> None:
        self._desk.backend = backend
        if self.state["state"] == "loading":
            self._enter({"state": "ready"} | backend.facts)

    def _fail(self, error: MlxcelError, status: int) -> None:
        self._distribute()  # those who wait have been answered
        self._enter({"state": "failed", "error": encode_error(error)})
        self._exit = status

    def _drain(self) -> None:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._drain_seconds
            self._enter({"state": "draining"})
        else:
            self._deadline = now

    def _check_drained(self) -> None:
        if self._deadline is None or self._exit is not None:
            return
        if any(peer.jobs for peer in self._peers):
            if time.monotonic() < self._deadline:
                return
            said = EngineError("the engine shuts down and waits for the request no longer")
            for peer in list(self._peers):
                for job in list(peer.jobs.values()):
                    self._desk.withdraw(job)
                    peer.end(job, said)
        self._exit = os.EX_OK

    def _part(self) -> None:
        """Send the last words, then close everything."""
        end = time.monotonic() + FLUSH_SECONDS
        while any(not peer.idle for peer in self._peers) and time.monotonic() < end:
            for peer in list(self._peers):
                self._try_flush(peer)
            time.sleep(0.005)
        for peer in list(self._peers):
            self._lose(peer)
        self._desk.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _status(self) -> dict[str, Any]:
        jobs = sum(len(peer.jobs) for peer in self._peers)
        running = self._desk.running
        return self.state | {
            "pid": os.getpid(),
            "seconds": time.monotonic() - self._began,
            "clients": len(self._peers),
            "requests": jobs,
            "running": running,
            "waiting": max(jobs - running, 0),
            "served": self._desk.served,
            "cancelled_slow": self._slow,
        }


def _loading(label: str, done: int, total: int) -> dict[str, Any]:
    return {"state": "loading", "label": label, "done": done, "total": total}
