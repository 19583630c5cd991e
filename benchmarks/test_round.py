"""Cost of a round by width with scripted acceptance, and of a cache write by capacity."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxcel.hardware.blas import choose

choose()

from mlxcel.config import Settings  # noqa: E402
from mlxcel.engine.engine import Engine  # noqa: E402
from mlxcel.engine.prepare import load_model  # noqa: E402
from mlxcel.engine.scripted import ScriptedDrafter  # noqa: E402
from mlxcel.runtime.frame import Frame  # noqa: E402
from mlxcel.runtime.kv_cache import SlotCache  # noqa: E402
from mlxcel.runtime.loader import LoadedModel  # noqa: E402
from mlxcel.types import Request, SamplingParams  # noqa: E402

PROMPT = "Write one sentence about the sea."
ROUNDS = 8


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    """The demo model as this host serves it."""
    return load_model("demo", Settings.from_env())


def run(engine: Engine, request: Request) -> Any:
    """Run one request to its end."""
    engine.add(request)
    completion = None
    while engine.busy:
        for chunk in engine.step():
            completion = chunk.completion or completion
    return completion


@pytest.fixture(scope="module")
def answer(demo: LoadedModel) -> Any:
    """The classic answer, which the scripted drafter knows."""
    prompt = tuple(demo.tokenizer.encode(PROMPT))
    params = SamplingParams(max_tokens=1 + ROUNDS * 8, ignore_eos=True)
    return run(Engine(demo, None, Settings()), Request(prompt_ids=prompt, params=params))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8])
def test_round_cost(benchmark: Any, demo: LoadedModel, answer: Any, width: int) -> None:
    """Every draft is accepted, so that all widths run the same number of rounds.

    ``extra_info`` has milliseconds per round; divided by those of width 1 they are the
    round cost in classic steps.
    """
    settings = Settings()
    prompt = tuple(demo.tokenizer.encode(PROMPT))
    tokens = 1 + ROUNDS * width
    vocab = demo.target.vocab_size
    drafter = ScriptedDrafter({prompt: answer.token_ids}, [width], vocab)
    engine = Engine(demo, drafter, settings)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    request = Request(prompt_ids=prompt, params=params, width=width)

    completion = benchmark.pedantic(
        lambda: run(engine, request), rounds=3, iterations=1, warmup_rounds=1
    )
    assert completion.token_ids == answer.token_ids[:tokens]
    assert completion.speculation.rounds == ROUNDS
    decode = completion.speculation.decode_seconds
    benchmark.extra_info["ms_per_round"] = 1000 * decode / ROUNDS


@pytest.mark.parametrize("capacity", [256, 4096, 32768])
def test_slot_write(benchmark: Any, capacity: int) -> None:
    """Four rows at their own offsets; the time must not grow with the capacity."""
    cache = SlotCache([None], slack=8, length_step=capacity)
    layer = cache.layers[0]
    keys = mx.random.normal((4, 3, 4, 64))
    lengths = mx.array([10, 50, 3, 77], dtype=mx.int32)
    cache.frame = Frame(lengths, 4, 100)
    layer.update_and_fetch(keys, keys)
    mx.eval(layer.keys, layer.values, keys)

    def write() -> None:
        cache.frame = Frame(lengths, 4, 100)
        layer.update_and_fetch(keys, keys)
        mx.eval(layer.keys, layer.values)

    benchmark(write)
