"""Clients of a loaded model, on threads of their own: closed and open loop.

They use the interface of `mlxcel.LLM` alone, so that an engine in another process is driven as
one in this process is.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.load_figures import Trace

__all__ = ["Load", "Streaming", "arrivals", "closed_loop", "open_loop", "read"]


class Streaming(Protocol):
    """What a client needs of a model."""

    def stream(self, prompt: Any, *, speculation: Any = "auto", **params: Any) -> Iterator[Any]:
        """Chunks of an answer."""


@dataclass(frozen=True)
class Load:
    """What is asked: request ``i`` is ``prompts[i]``, answered with ``tokens`` tokens.

    Attributes
    ----------
    prompts : sequence of list of int
        Token ids.
    tokens : int
        Tokens of each answer, whatever they are.
    streams : int
        Clients of a closed loop; stream ``s`` sends the requests ``s``, ``s + streams``, ...
    rate : float or None
        Requests per second of an open loop; ``None``: closed.
    seed : int
        Of the arrivals.
    """

    prompts: Sequence[list[int]]
    tokens: int
    streams: int
    rate: float | None = None
    seed: int = 0


def arrivals(load: Load) -> list[float]:
    """Seconds after the beginning at which the requests of an open loop come: Poisson."""
    if load.rate is None:
        raise ValueError("a closed loop has no arrivals: give a rate")
    rng, at, times = random.Random(load.seed), 0.0, []
    for _ in load.prompts:
        times.append(at)
        at += rng.expovariate(load.rate)
    return times


def read(model: Streaming, trace: Trace, prompt: list[int], tokens: int, speculation: str) -> None:
    """Send one request and read its answer to the end."""
    for chunk in model.stream(
        prompt, speculation=speculation, max_tokens=tokens, ignore_eos=True
    ):
        trace.take(time.perf_counter(), chunk.token_ids)
        if chunk.completion is not None:
            if chunk.completion.error is not None:
                raise RuntimeError(f"request {trace.number}: {chunk.completion.error}")
            stats = chunk.completion.speculation
            trace.rounds, trace.proposed = stats.rounds, stats.proposed
            trace.accepted = stats.accepted
            trace.widths = sum(width * count for width, count in stats.widths)


def closed_loop(model: Streaming, load: Load, speculation: str) -> list[Trace]:
    """Each stream sends its next request when its last one has ended."""

    def client(stream: int) -> list[Trace]:
        traces = []
        for number in range(stream, len(load.prompts), load.streams):
            trace = Trace(number, stream, time.perf_counter())
            read(model, trace, load.prompts[number], load.tokens, speculation)
            traces.append(trace)
        return traces

    jobs = [functools.partial(client, stream) for stream in range(load.streams)]
    return [trace for traces in _on_threads(jobs) for trace in traces]


def open_loop(model: Streaming, load: Load, speculation: str) -> list[Trace]:
    """Requests come when they come, whether others have ended or not."""
    begin = time.perf_counter()

    def client(number: int, at: float) -> Trace:
        time.sleep(max(begin + at - time.perf_counter(), 0.0))
        trace = Trace(number, number, begin + at)
        read(model, trace, load.prompts[number], load.tokens, speculation)
        return trace

    return _on_threads([functools.partial(client, *due) for due in enumerate(arrivals(load))])


def _on_threads(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run every job on a thread; results in order. A failure of one is raised."""
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []

    def run(at: int) -> None:
        try:
            results[at] = jobs[at]()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
