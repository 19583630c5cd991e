"""The engine behind an application: connected when it is first needed, so after any fork."""

from __future__ import annotations

import threading
from typing import Any

from flask import current_app

from mlxcel import EngineClient
from mlxcel.errors import MlxcelError
from webapp.config import WebConfig

__all__ = ["Holder", "holder"]

QUESTION_SECONDS = 2.0
"""How long the engine may take to say how it is."""


class Holder:
    """Gives routes the engine. All methods may be called from any thread.

    Parameters
    ----------
    config : WebConfig
        Where the engine is.
    engine : Front, optional
        An engine to use instead of the one at the socket.
    """

    def __init__(self, config: WebConfig, engine: Any = None) -> None:
        self.config = config
        self._given = engine
        self._lock = threading.Lock()
        self._client: EngineClient | None = None
        self._asker: EngineClient | None = None
        self._texts: dict[int, str] = {}

    @property
    def front(self) -> Any:
        """What generates: an `EngineClient`, or the engine that was given.

        Raises
        ------
        EngineError
            No engine listens at the socket.
        """
        if self._given is not None:
            return self._given
        with self._lock:
            if self._client is None:
                self._client = EngineClient(
                    self.config.socket, wait=self.config.engine_wait, ready=False
                )
            return self._client

    def status(self) -> dict[str, Any]:
        """How the engine is: at least ``state``; never raises, and waits for 2 s at most."""
        try:
            if self._given is not None:
                ask = getattr(self._given, "status", None)
                return {"state": "ready"} if ask is None else dict(ask())
            return self._asking().status()
        except MlxcelError as error:
            return {"state": "unavailable", "reason": error.message}

    def state(self) -> str:
        """One word: ready, loading, draining, failed or unavailable."""
        return str(self.status()["state"])

    def metrics(self) -> dict[str, Any]:
        """What the engine counts.

        Raises
        ------
        EngineError
            There is none, or it does not answer in 2 s.
        """
        return dict((self._given or self._asking()).metrics())

    def token_texts(self, token_ids: set[int]) -> dict[int, str]:
        """Text of each token by itself; the engine is asked once for each."""
        known = self._texts
        if missing := sorted(token_ids - known.keys()):
            texts = self.front.token_texts(missing)
            known |= dict(zip(missing, texts, strict=True))
        return known

    def _asking(self) -> EngineClient:
        """A connection with little patience, for questions."""
        with self._lock:
            if self._asker is None:
                self._asker = EngineClient(
                    self.config.socket, timeout=QUESTION_SECONDS, wait=0.2, ready=False
                )
            return self._asker


def holder() -> Holder:
    """The engine of the running application."""
    made = current_app.extensions["mlxcel"]
    assert isinstance(made, Holder)
    return made
