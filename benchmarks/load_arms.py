"""The arms of `load`: our engine with and without speculation, and mlx-lm's batch generator.

Imports MLX, so only after the choice of BLAS. mlx-lm's arm runs on the thread that made it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm.generate import BatchGenerator

from benchmarks.load_clients import Load, Streaming, arrivals, closed_loop, open_loop
from benchmarks.load_figures import Trace
from mlxcel.config import Settings
from mlxcel.runtime.loader import LoadedModel, load_checkpoint

__all__ = ["MlxLm", "ours"]

Arm = Callable[[Load], list[Trace]]


def ours(model: Streaming, speculation: str) -> Arm:
    """An arm of our engine, in this process or behind a client of the same interface."""

    def run(load: Load) -> list[Trace]:
        loop = closed_loop if load.rate is None else open_loop
        return loop(model, load, speculation)

    return run


class MlxLm:
    """mlx-lm's own modules and continuous batching on the same weights and BLAS, greedy.

    Parameters
    ----------
    name : str or Path
        As for ``mlxcel.load``.
    form : {"stored", "dense"}
        Form of the weights that our engine serves.
    settings : Settings
        The cache folder.
    """

    def __init__(self, name: str | Path, form: str, settings: Settings) -> None:
        self.model: LoadedModel = load_checkpoint(
            name, cache_dir=settings.cache_dir, weights=form, lean=False
        )

    def __call__(self, load: Load) -> list[Trace]:
        """Run a load; rows that decode together are as many as streams."""
        generator = BatchGenerator(
            self.model.target.model,
            max_tokens=load.tokens,
            completion_batch_size=load.streams,
            prefill_batch_size=min(8, load.streams),
        )
        run = _Run(generator, load)
        traces = run.closed() if load.rate is None else run.open()
        generator.close()
        return traces


class _Run:
    """One load through one generator: who has been sent, and what came back."""

    def __init__(self, generator: Any, load: Load) -> None:
        self._generator = generator
        self._load = load
        self._running: dict[int, Trace] = {}
        self._done: list[Trace] = []

    def closed(self) -> list[Trace]:
        """Each stream's next request follows its last one."""
        load = self._load
        queues = {
            stream: deque(range(stream, len(load.prompts), load.streams))
            for stream in range(load.streams)
        }
        for stream, queue in queues.items():
            if queue:
                self._send(queue.popleft(), stream, time.perf_counter())
        while self._running:
            for ended in self._step():
                if queues[ended.stream]:
                    number = queues[ended.stream].popleft()
                    self._send(number, ended.stream, time.perf_counter())
        return self._done

    def open(self) -> list[Trace]:
        """Requests are sent when they are due."""
        begin = time.perf_counter()
        due = deque(enumerate(arrivals(self._load)))
        while due or self._running:
            while due and begin + due[0][1] <= time.perf_counter():
                number, at = due.popleft()
                self._send(number, number, begin + at)
            if self._running:
                self._step()
            else:
                time.sleep(max(begin + due[0][1] - time.perf_counter(), 0.0))
        return self._done

    def _send(self, number: int, stream: int, at: float) -> None:
        prompt = list(self._load.prompts[number])
        (uid,) = self._generator.insert([prompt], [self._load.tokens])
        self._running[uid] = Trace(number, stream, at)

    def _step(self) -> list[Trace]:
        """One step of the generator; the requests that ended with it."""
        _, responses = self._generator.next()
        at, ended = time.perf_counter(), []
        for response in responses:
            trace = self._running[response.uid]
            trace.take(at, [int(response.token)])
            trace.rounds, trace.widths = trace.rounds + 1, trace.widths + 1
            if response.finish_reason is not None:
                ended.append(self._running.pop(response.uid))
        self._done.extend(ended)
        return ended
