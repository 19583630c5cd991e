"""Kernels that one classic step, one draft and one round ask of a GPU, beside `mlx_lm.generate`.

``python -m benchmarks.primitives_per_step`` needs no GPU and no file: the model has the demo
model's 30 layers, its kinds of modules, 4-bit weights and bfloat16, in small sizes, since only
the operations are counted (`benchmarks.gpu_graph`). ``calls`` are the functions that Python
called in a step, its own and compiled ones: the exact part of what the host does. Times are
not taken. ``--plain`` leaves the modules as mlx-lm made them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models import llama

from benchmarks.gpu_graph import GpuGraph, difference, launches
from benchmarks.model import random_head
from benchmarks.stepping import FIRST, Rounds
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.models.joined import join_projections
from mlxcel.types import Request, SamplingParams
from tests.support.tiny import loaded

LAYERS, VOCABULARY, PROMPT, ROUNDS = 30, 128, 18, 4
Counts = dict[str, Counter[str]]
"""Operations by part of a step."""


def demo_like(layers: int = LAYERS) -> llama.Model:
    """The demo model's modules in small sizes: tied head, grouped heads of 64, 4 bits."""
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs(
        model_type="llama", hidden_size=64, num_hidden_layers=layers, intermediate_size=128,
        num_attention_heads=3, num_key_value_heads=1, head_dim=64, rms_norm_eps=1e-5,
        vocab_size=VOCABULARY, max_position_embeddings=4096,
    ))  # fmt: skip
    nn.quantize(model, group_size=32, bits=4)
    model.update(tree_map(
        lambda value: value if value.dtype == mx.uint32 else value.astype(mx.bfloat16),
        model.parameters(),
    ))  # fmt: skip
    mx.eval(model.parameters())
    return model


class Parts:
    """Counts each round of an engine by part while it is entered; the last one stays.

    Attributes
    ----------
    found : dict
        ``step`` of a classic round; ``draft``, ``verify`` and ``absorb`` of another.
    """

    def __init__(self, engine: Engine, graph: GpuGraph, width: int) -> None:
        self.found: Counts = {}
        self._engine, self._graph, self._width = engine, graph, width
        self._enqueue: Any = mx.async_eval

    def __enter__(self) -> Parts:
        verify = self._engine.batch.verify

        def counted(drafts: mx.array | None, *args: Any, **kwargs: Any) -> Any:
            self.found = {} if drafts is None else {"draft": self._graph.count(drafts)}
            check = verify(drafts, *args, **kwargs)
            whole = self._graph.count(
                [check.packed, *self._engine.batch.pending()], self._width
            )
            name = "step" if drafts is None else "verify"
            self.found[name] = difference(whole, list(self.found.values()))
            return check

        self._engine.batch.verify = counted  # type: ignore[method-assign]
        mx.async_eval = self._enqueued
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine.batch.verify  # the class's method is seen again
        mx.async_eval = self._enqueue

    def _enqueued(self, *arrays: Any) -> None:
        if "verify" in self.found:
            whole = self._graph.count(arrays, self._width)
            self.found["absorb"] = difference(whole, list(self.found.values()))
        self._enqueue(*arrays, *self._graph.take())


def count_engine(model: llama.Model, width: int, *, join: bool = True) -> Counts:
    """One round of the engine: a classic step, or draft, verify and taking in what it found."""
    engine, rounds = _engine(model, width, join=join)
    with GpuGraph() as graph:
        rounds.prepare()
        with Parts(engine, graph, width) as parts:
            rounds.run()
            found = parts.found
        rounds.stop()
    return found


def count_mlx_lm(model: llama.Model) -> Counts:
    """One step of the loop in ``mlx_lm.generate``."""
    enqueue: Any = mx.async_eval
    found: Counts = {}
    with GpuGraph() as graph:

        def counted(*arrays: Any) -> None:
            found["step"] = graph.count(arrays)
            enqueue(*arrays, *graph.take())

        mx.async_eval = counted
        try:
            for _ in _steps_of_mlx_lm(model):
                pass
        finally:
            mx.async_eval = enqueue
    return found


def calls_of_engine(model: llama.Model, width: int, *, join: bool = True) -> int:
    """Functions that Python calls in one round."""
    _, rounds = _engine(model, width, join=join)
    rounds.prepare()
    count = _calls(rounds.run) // ROUNDS
    rounds.stop()
    return count


def calls_of_mlx_lm(model: llama.Model) -> int:
    """Functions that Python calls in one step of ``mlx_lm.generate``."""
    steps = _steps_of_mlx_lm(model)
    for _ in range(FIRST):  # the prompt is read in the first
        next(steps)

    def run() -> None:
        for _ in range(ROUNDS):
            next(steps)

    count = _calls(run) // ROUNDS
    steps.close()
    return count


def _steps_of_mlx_lm(model: llama.Model) -> Generator[Any, None, None]:
    prompt = mx.array(list(range(1, PROMPT)))
    steps: Any = generate_step(prompt, model, max_tokens=FIRST + ROUNDS + 2)
    return steps  # type: ignore[no-any-return]


def _engine(model: llama.Model, width: int, *, join: bool) -> tuple[Engine, Rounds]:
    settings = Settings(prefix_bytes=0)
    if join:
        join_projections(model)
    target = loaded(model)
    drafter = random_head(target, settings) if width > 1 else None
    if join and drafter is not None:
        join_projections(drafter._chain.head)
    engine = Engine(target, drafter, settings)
    params = SamplingParams(max_tokens=width * (2 * ROUNDS + FIRST), ignore_eos=True, seed=1)
    request = Request(prompt_ids=tuple(range(1, PROMPT)), params=params, width=width)
    return engine, Rounds(engine, [request], ROUNDS)


def _calls(run: Callable[[], Any]) -> int:
    """Python's own and compiled functions that are called meanwhile, on this thread."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--names", action="store_true", help="operations by name, too")
    options = parser.parse_args(arguments)
    layers, width = options.layers, options.width
    rows: list[tuple[str, Counts, int]] = [
        ("mlx_lm.generate", count_mlx_lm(demo_like(layers)), calls_of_mlx_lm(demo_like(layers)))
    ]
    for join in (False, True):
        for wide in (1, width):
            label = ("joined" if join else "as mlx-lm made it") + f", width {wide}"
            parts = count_engine(demo_like(layers), wide, join=join)
            rows.append((label, parts, calls_of_engine(demo_like(layers), wide, join=join)))
    print(f"{'model':28} {'part':9} {'kernels':>8} {'views':>6} {'calls':>6}")
    for label, found, calls in rows:
        for name, counts in found.items():
            views = counts.total() - launches(counts)
            print(f"{label:28} {name:9} {launches(counts):8} {views:6}")
            if options.names:
                print("   ", ", ".join(f"{count} {each}" for each, count in counts.most_common()))
        total = sum(launches(counts) for counts in found.values())
        print(f"{label:28} {'together':9} {total:8} {'':6} {calls:6}")
    return 0


if __name__ == "__main__":
    with mx.stream(mx.cpu):
        raise SystemExit(main())
