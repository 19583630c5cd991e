"""`EngineClient`: what `LLM` does, by an engine in another process. Needs no MLX."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlxcel.config import Settings
from mlxcel.errors import ConfigError, EngineError, LoadError, MlxcelError
from mlxcel.front import Asked, Front, Prompt, Ticket, plain_prompt
from mlxcel.remote.address import default_socket
from mlxcel.remote.link import Link, RemoteTicket
from mlxcel.remote.wire_types import decode_error, encode_asked

__all__ = ["EngineClient"]

AGAIN_SECONDS = 0.05
Progress = Callable[[str, int, int], None]


class EngineClient(Front):
    """Talks to ``mlxcel engine``. All methods may be called from any thread.

    A call that finds the connection lost makes a new one, so a client outlives restarts of
    the engine. What was running when it died has ended with an error and is not sent again.

    Parameters
    ----------
    socket_path : str or Path, optional
        The engine's socket; by default ``$XDG_RUNTIME_DIR/mlxcel.sock``, else ``mlxcel.sock``
        in the cache folder.
    timeout : float
        Seconds that the engine may take to accept a request or to answer a question.
    wait : float
        Seconds to wait for an engine that loads its model or restarts. Where nobody
        listens at all there is nothing to wait for.
    progress : callable, optional
        Called with a label, the amount done and the total while an engine loads.
    ready : bool
        Whether to wait now, rather than at the first call that needs it.

    Raises
    ------
    EngineError
        No engine listens there, it is not ready in time, or it is of another version.
    """

    def __init__(
        self,
        socket_path: str | Path | None = None,
        *,
        timeout: float = 120.0,
        wait: float = 60.0,
        progress: Progress | None = None,
        ready: bool = True,
    ) -> None:
        if socket_path is None:
            socket_path = default_socket(os.environ, Settings.from_env())
        self._path = Path(socket_path)
        self._timeout = timeout
        self._wait = wait
        self._progress = progress
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._end: weakref.finalize[[MlxcelError], EngineClient] | None = None
        self._closed = False
        self._facts: dict[str, Any] | None = None
        if ready:
            self._ready()
        else:
            self._connected(wait)

    @property
    def facts(self) -> dict[str, Any]:
        """Names and abilities of the model; see `mlxcel.engine.facts.facts_of`.

        Raises
        ------
        EngineError
            The engine drains and does not say them any longer.
        """
        state = self._ready().state
        if state["state"] == "ready":
            self._facts = state
        if self._facts is None:
            raise EngineError(f"the engine at {self._path} is draining: it shuts down")
        return self._facts

    def close(self) -> None:
        """End the connection; running requests are cancelled. Idempotent."""
        with self._lock:
            self._closed, link = True, self._link
        if link is not None:
            link.close(EngineError("the client is closed"))

    def encode(self, prompt: Prompt, *, tools: Sequence[Any] = ()) -> tuple[int, ...]:
        """Turn a prompt into token ids; see `Front.encode`."""
        return tuple(self._ask("encode", plain_prompt(prompt), list(tools)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        return str(self._ask("decode", list(token_ids)))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each token by itself; see `Front.token_texts`."""
        return [str(text) for text in self._ask("token_texts", list(token_ids))]

    def parse_tool_call(self, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
        """Calls in a text of the model; see `Front.parse_tool_call`."""
        return [dict(call) for call in self._ask("parse_tool_call", text, list(tools))]

    def mtp_policy(self) -> list[dict[str, Any]]:
        """What the adaptive policy rests on, by block width; see `Front.mtp_policy`."""
        return list(self._ask("mtp_policy"))

    def metrics(self) -> dict[str, Any]:
        """Plain values that the engine measures about itself."""
        return dict(self._ask("metrics"))

    def status(self) -> dict[str, Any]:
        """How the process is, also while it loads.

        Returns
        -------
        dict
            ``state`` (loading, ready, draining, failed), ``pid``, ``seconds`` since the start,
            ``clients``, ``requests`` that are open, of which ``running`` decode and ``waiting``
            do not yet, ``served`` and ``cancelled_slow`` since the start; ``model``, ``drafter``
            once ready; ``label``, ``done`` and ``total`` while it loads.
        """
        return dict(self._answer(self._connected(self._wait).ask("status")))

    def _submit(self, asked: Asked) -> Ticket:
        plain = encode_asked(asked)
        ticket = self._ready().submit(plain)
        try:
            ticket.request_id.result(self._timeout)
        except concurrent.futures.TimeoutError:
            self._cancel(ticket)
            raise self._late() from None
        except BaseException:
            self._cancel(ticket)
            raise
        return ticket

    def _cancel(self, ticket: Ticket) -> None:
        assert isinstance(ticket, RemoteTicket)
        ticket.link.cancel(ticket)

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._answer(self._ready().ask(name, *arguments))

    def _answer(self, answer: concurrent.futures.Future[Any]) -> Any:
        try:
            return answer.result(self._timeout)
        except concurrent.futures.TimeoutError:
            raise self._late() from None

    def _late(self) -> EngineError:
        return EngineError(f"the engine at {self._path} did not answer in {self._timeout:g} s")

    def _connected(self, patience: float) -> Link:
        """The connection, made again if it was lost or belongs to the parent of a fork."""
        with self._lock:
            if self._closed:
                raise EngineError("the client is closed: make a new one")
            link = self._link
            if link is None or link.error is not None or link.process != os.getpid():
                link = self._link = Link(self._path, patience)
                if self._end is not None:
                    self._end.detach()
                self._end = weakref.finalize(self, link.close, EngineError("the client is gone"))
                self._end.atexit = False
            return link

    def _ready(self) -> Link:
        """A connection to an engine that takes requests, or refuses them for a reason."""
        end = time.monotonic() + self._wait
        while True:
            link = self._connected(max(end - time.monotonic(), 0.0))
            if self._settled(link, end):
                return link
            time.sleep(AGAIN_SECONDS)  # it died while it loaded; its successor may be better

    def _settled(self, link: Link, end: float) -> bool:
        """Wait until the engine has loaded; return whether the connection is still there."""
        while True:
            state = link.state
            if state["state"] == "failed":
                error = decode_error(state["error"])
                if isinstance(error, (LoadError, ConfigError)):
                    raise error  # the supervisor does not try again
            if link.error is not None:
                if link.lost:
                    return False
                raise link.error
            if state["state"] in ("ready", "draining"):
                return True
            if self._progress is not None and "label" in state:
                self._progress(state["label"], state["done"], state["total"])
            if not link.wait_for_change(state, end - time.monotonic()):
                raise EngineError(f"the engine at {self._path} is not ready: {_loading(state)}")


def _loading(state: dict[str, Any]) -> str:
    if state["state"] != "loading":
        return "it has not said hello, so it is starting again"
    total = f" of {state['total']}" if state.get("total") else ""
    return f"it loads ({state.get('label')}, {state.get('done')}{total}); wait longer"
