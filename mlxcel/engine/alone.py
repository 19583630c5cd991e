"""One request through an engine that has nothing else to do."""

from __future__ import annotations

from mlxcel.engine.engine import Engine
from mlxcel.errors import EngineError
from mlxcel.types import Completion, Request

__all__ = ["run_alone"]


def run_alone(engine: Engine, request: Request) -> Completion:
    """Queue a request and step the engine until it rests; returns the request's completion.

    Raises
    ------
    EngineError
        The request ended with an error.
    """
    engine.add(request)
    done: Completion | None = None
    while engine.busy:
        for chunk in engine.step():
            done = chunk.completion or done
    assert done is not None
    if done.error is not None:
        raise EngineError(f"the request failed: {done.error}")
    return done
