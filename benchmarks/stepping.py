"""An engine stepped through rounds that are all alike, with nothing else in the time."""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.engine.engine import Engine
from mlxcel.types import Request

__all__ = ["FIRST", "Rounds"]

FIRST = 3
"""Rounds after the last prompt that are not looked at: caches grow and pipelines fill in them."""


class Rounds:
    """Rounds of one set of requests, begun anew for every sample.

    Parameters
    ----------
    engine : Engine
        At rest.
    requests : sequence of Request
        Decoded together; long enough that none ends within `FIRST` and ``rounds`` rounds.
    rounds : int
        Rounds of one `run`.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request], rounds: int) -> None:
        self.engine, self.requests, self.rounds = engine, list(requests), rounds
        self._ids: list[int] = []

    def prepare(self) -> None:
        """End what runs, read the prompts, and run the first rounds of all rows."""
        self.stop()
        engine = self.engine
        self._ids = [engine.add(request) for request in self.requests]
        while len(engine.scheduler.running) < len(self.requests):
            engine.step()
        for _ in range(FIRST):
            engine.step()

    def run(self) -> int:
        """The rounds; returns the tokens they emitted."""
        emitted = 0
        for _ in range(self.rounds):
            for chunk in self.engine.step():
                emitted += len(chunk.token_ids)
        return emitted

    def stop(self) -> None:
        """End the requests and let the engine come to rest."""
        for number in self._ids:
            self.engine.cancel(number)
        self._ids = []
        while self.engine.busy:
            self.engine.step()
