"""Stage clocks around a real engine: every stage is evaluated before the next one begins.

Imports MLX, so only after the choice of BLAS. Nothing of the engine is copied: the calls it
makes are wrapped, and taken off again by `Stages.stop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxcel.engine.engine import Engine
from mlxcel.errors import EngineError
from mlxcel.types import Completion, Request

__all__ = ["PARTS", "Round", "Stages", "run"]

PARTS = ("draft", "verify", "absorb", "host")
Round = dict[str, float]
"""Seconds of a round by part, with ``wall`` and ``width``."""


class Stages:
    """Clocks on the parts of an engine's rounds.

    ``draft``, ``verify`` and ``absorb`` are the drafter's and the batch's calls with everything
    they return evaluated. ``host`` is what the engine does between them: plan, arranging rows,
    narrowing, then settling and emitting the round before. Each is measured by itself.

    Parameters
    ----------
    engine : Engine
        At rest, with a drafter or without.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._saved: list[tuple[Any, str]] = []
        self._inside = 0
        self.now: Round = {}

    def start(self) -> None:
        """Put the clocks on."""
        engine, batch, drafter = self._engine, self._engine.batch, self._engine.drafter
        self._wrap(batch, "verify", "verify", lambda out: [out.packed, out.hidden, out.accepted,
                                                           *batch.pending()])  # fmt: skip
        if drafter is not None:
            self._wrap(drafter, "draft", "draft", lambda out: [] if out.tokens is None
                       else [out.tokens])  # fmt: skip
            self._wrap(drafter, "absorb", "absorb", lambda out: out)
        for owner, name in ((engine.scheduler, "plan"), (engine.rows, "arrange"),
                            (engine.scheduler, "narrow"), (engine, "_settle")):  # fmt: skip
            self._wrap(owner, name, "host", lambda out: [])

    def stop(self) -> None:
        """Take the clocks off."""
        for owner, name in self._saved:
            delattr(owner, name)  # the class's method is seen again
        self._saved.clear()

    def _wrap(
        self, owner: Any, name: str, part: str, pending: Callable[[Any], list[mx.array]]
    ) -> None:
        plain = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # part of a stage whose clock runs
                return plain(*args, **kwargs)
            self._inside += 1
            began = time.perf_counter()
            try:
                out = plain(*args, **kwargs)
                mx.eval(pending(out))
            finally:
                self._inside -= 1
                self.now[part] = self.now.get(part, 0.0) + time.perf_counter() - began
            return out

        setattr(owner, name, timed)
        self._saved.append((owner, name))


def run(engine: Engine, request: Request, stages: Stages | None) -> tuple[list[Round], Completion]:
    """Decode one request; return its rounds after the prefill, and the completion.

    Parameters
    ----------
    engine : Engine
        At rest.
    request : Request
        Decoded alone.
    stages : Stages or None
        Clocks to put on; without them rounds are undisturbed and only have their wall time.

    Raises
    ------
    EngineError
        The request failed, as it does where the exactness probe declines its width.
    """
    rounds: list[Round] = []
    completion: Completion | None = None
    if stages is not None:
        stages.start()
    try:
        engine.add(request)
        while engine.busy:
            if stages is not None:
                stages.now = {}
            decoding = bool(engine.scheduler.running)
            began = time.perf_counter()
            chunks = engine.step()
            wall = time.perf_counter() - began
            if decoding:
                rounds.append({"wall": wall} | (stages.now if stages is not None else {}))
            for chunk in chunks:
                completion = chunk.completion or completion
    finally:
        if stages is not None:
            stages.stop()
    assert completion is not None
    if completion.error is not None:
        raise EngineError(completion.error)
    return rounds, completion
