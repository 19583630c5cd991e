"""What clients ask, on its way to the engine: checks, then worker threads for what takes time.

Chat templates, tokenizing and questions to the engine's thread run on the workers, so that
they delay nobody's answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from mlxcel.errors import CapacityError, EngineError, MlxcelError
from mlxcel.front import Asked, Ticket
from mlxcel.remote.peer import Job, Peer
from mlxcel.remote.wire import ANSWER_LIMIT, pack
from mlxcel.remote.wire_types import decode_asked, encode_error

__all__ = ["Backend", "Desk"]

log = logging.getLogger(__name__)

WORKERS = 4
MAX_JOBS = 4096
"""Open requests of one client."""


class Backend(Protocol):
    """What the host asks of the engine. All methods may be called from any thread."""

    facts: dict[str, Any]
    """Names and abilities of the model, for clients."""

    def begin(self, asked: Asked, ticket: Ticket) -> None:
        """Encode the prompt and queue the request; the ticket is told the rest."""

    def cancel(self, ticket: Ticket) -> None:
        """End a request early, without waiting."""

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Answer a question by plain values: encode, decode, mtp_policy, metrics."""

    @property
    def running(self) -> int:
        """Rows that decode now."""


class Desk:
    """Takes requests and questions; all methods run on the host's thread and wait for nothing.

    Parameters
    ----------
    reply : callable
        Sends a client a packed message; called on a worker thread.
    """

    def __init__(self, reply: Callable[[Peer, bytes], None]) -> None:
        self.backend: Backend | None = None
        self.served = 0
        self._reply = reply
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="mlxcel-desk")

    @property
    def running(self) -> int:
        """Rows that decode now."""
        return 0 if self.backend is None else self.backend.running

    def submit(self, job: Job, value: Any, state: Mapping[str, Any]) -> None:
        """Begin a client's request, or end it with an error."""
        peer = job.peer
        peer.jobs[job.number] = job
        self.served += 1
        try:
            if self.backend is None or state["state"] != "ready":
                raise _unready(state)
            if len(peer.jobs) > MAX_JOBS:
                raise CapacityError(f"this client has {MAX_JOBS} open requests: wait for some")
            asked = decode_asked(value)
        except MlxcelError as error:
            peer.end(job, error)
            return
        job.stream = asked.stream
        self._pool.submit(self._begin, job, asked, self.backend)

    def withdraw(self, job: Job) -> None:
        """Cancel a request that nobody wants any longer, whether the engine has it or not."""
        job.withdrawn = True
        if self.backend is not None:
            self.backend.cancel(job)

    def ask(self, peer: Peer, number: int, name: str, arguments: list[Any]) -> None:
        """Answer a client's question."""
        self._pool.submit(self._ask, peer, number, name, arguments)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, job: Job, asked: Asked, backend: Backend) -> None:
        try:
            if not job.withdrawn:
                backend.begin(asked, job)
        except Exception as error:  # noqa: BLE001 - it is the client's
            job.refuse(error)

    def _ask(self, peer: Peer, number: int, name: str, arguments: list[Any]) -> None:
        try:
            if self.backend is None:
                raise EngineError("the engine is loading its model: wait until it is ready")
            frame = pack(["result", number, self.backend.call(name, arguments)], ANSWER_LIMIT)
        except MlxcelError as error:
            frame = pack(["failed", number, encode_error(error)], ANSWER_LIMIT)
        except Exception as error:
            log.exception("a question of a client failed")
            said = EngineError(f"{name[:40]} failed: {error}")
            frame = pack(["failed", number, encode_error(said)], ANSWER_LIMIT)
        self._reply(peer, frame)


def _unready(state: Mapping[str, Any]) -> MlxcelError:
    if state["state"] == "draining":
        return CapacityError("the engine is draining, it shuts down: no new requests")
    return EngineError("the engine is loading its model: wait until it is ready")
