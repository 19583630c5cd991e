"""The engine process's I/O: one thread serves all clients and never waits for one.

The engine's thread appends news to a queue and wakes this one once per step; each client
then gets its chunks of that step in a single send. What takes time is the `Desk`'s.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from mlxcel.errors import EngineError, MlxcelError, RequestError
from mlxcel.remote.desk import Backend, Desk
from mlxcel.remote.door import Door
from mlxcel.remote.peer import Job, Peer
from mlxcel.remote.wire import Message, WireError, hello, mismatch
from mlxcel.remote.wire_types import encode_error
from mlxcel.types import Chunk

__all__ = ["Host"]

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.1

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
        self._buffer = buffer
        self.state: dict[str, Any] = _loading("starting", 0, 0)
        self._drain_seconds = drain_seconds
        self._on_state = on_state
        self._outbound: deque[tuple[Job, int | Chunk | BaseException]] = deque()
        self._actions: deque[Callable[[], None]] = deque()
        self._deadline: float | None = None
        self._exit: int | None = None
        self._shown = 0.0
        self._began = time.monotonic()
        self._slow = 0
        self._desk = Desk(self._reply)
        self._door = Door(
            listener,
            max_peers,
            welcome=self._welcome,
            take=self._take,
            withdraw=self._desk.withdraw,
        )

    # -- any thread ------------------------------------------------------------------

    def delivered(self) -> None:
        """A step's chunks have been queued (`Watcher.delivered`)."""
        if self._outbound:
            self._door.wake()

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
        self._door.wake()

    # -- the host's thread -----------------------------------------------------------

    def run(self) -> int:
        """Serve; return the status with which the process should end."""
        self._enter(self.state)
        while self._exit is None:
            self._door.wait(self._patience())
            while self._actions:
                self._actions.popleft()()
            self._distribute()
            self._check_drained()
        self._door.close()
        self._desk.close()
        return self._exit

    def _patience(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _welcome(self, sock: socket.socket) -> Peer:
        return Peer(sock, self._buffer, self._too_slow)

    def _too_slow(self, job: Job) -> None:
        self._slow += 1
        self._desk.withdraw(job)

    def _take(self, peer: Peer, message: Message) -> None:
        if not peer.greeted:
            if wrong := mismatch(message, "engine", "client"):
                self._door.refuse(peer, RequestError(wrong, param="protocol"))
                return
            peer.greeted = True
            peer.say(hello(buffer=self._buffer, pid=os.getpid(), state=self.state))
            return
        match message:
            case ["submit", int(number), asked] if number not in peer.jobs:
                job = Job(peer, number, self._outbound, self._door.wake)
                self._desk.submit(job, asked, self.state)
            case ["cancel", int(number)]:
                if number in peer.jobs:
                    self._desk.withdraw(peer.jobs.pop(number))
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
            self._door.try_flush(peer)

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
                self._door.lose(job.peer)
        for peer in touched:
            self._door.try_flush(peer)

    # -- states ----------------------------------------------------------------------

    def _enter(self, state: dict[str, Any]) -> None:
        self.state = state
        self._on_state(state)
        for peer in list(self._door.peers):
            if peer.greeted:
                peer.say(["state", state])
                self._door.try_flush(peer)

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
        if any(peer.jobs for peer in self._door.peers):
            if time.monotonic() < self._deadline:
                return
            said = EngineError("the engine shuts down and waits for the request no longer")
            for peer in list(self._door.peers):
                for job in list(peer.jobs.values()):
                    self._desk.withdraw(job)
                    peer.end(job, said)
        self._exit = os.EX_OK

    def _status(self) -> dict[str, Any]:
        jobs = sum(len(peer.jobs) for peer in self._door.peers)
        running = self._desk.running
        return self.state | {
            "pid": os.getpid(),
            "seconds": time.monotonic() - self._began,
            "clients": len(self._door.peers),
            "requests": jobs,
            "running": running,
            "waiting": max(jobs - running, 0),
            "served": self._desk.served,
            "cancelled_slow": self._slow,
        }


def _loading(label: str, done: int, total: int) -> dict[str, Any]:
    return {"state": "loading", "label": label, "done": done, "total": total}
