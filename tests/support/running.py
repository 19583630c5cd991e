"""Driving an engine by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlxcel.engine.engine import Engine
from mlxcel.types import Chunk, Completion, Request, SamplingParams


def drain(
    engine: Engine, before: Sequence[Chunk] = (), limit: int = 20_000
) -> tuple[dict[int, Completion], list[Chunk]]:
    """Step until nothing is left; check that nothing leaked."""
    done: dict[int, Completion] = {}
    chunks: list[Chunk] = list(before)
    for _ in range(limit):
        if not engine.busy:
            break
        for chunk in engine.step():
            chunks.append(chunk)
            if chunk.completion is not None:
                assert chunk.request_id not in done
                done[chunk.request_id] = chunk.completion
    assert not engine.busy, "the engine did not come to an end"
    assert engine.scheduler.table.live == 0
    assert engine.scheduler.table.admitted == engine.scheduler.table.released
    assert engine.batch.caches.nbytes == 0
    for chunk in chunks:
        assert len(chunk.pieces) == len(chunk.token_ids)
        assert "".join(chunk.pieces) == chunk.text or not chunk.token_ids
    for request_id, completion in done.items():
        mine = [chunk for chunk in chunks if chunk.request_id == request_id]
        assert "".join(chunk.text for chunk in mine) == completion.text
        assert tuple(t for chunk in mine for t in chunk.token_ids) == completion.token_ids
        assert len(completion.drafted) == len(completion.token_ids)
    return done, chunks


def run(engine: Engine, *requests: Request) -> list[Completion]:
    """Run requests together and return their completions in order."""
    ids = [engine.add(request) for request in requests]
    done, _ = drain(engine)
    return [done[request_id] for request_id in ids]


def one(
    engine: Engine, prompt: Sequence[int], width: int | None = None, **params: object
) -> Completion:
    """Run a single prompt."""
    request = Request(
        prompt_ids=tuple(prompt), params=SamplingParams(**params), width=width  # type: ignore[arg-type]
    )
    return run(engine, request)[0]


def classic(request: Request) -> Request:
    """The same request without speculation."""
    return replace(request, speculation="off", width=None)
