"""Thousands of requests leave nothing behind: memory, objects and compiled functions stay flat."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path

import mlx.core as mx
import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.lean import lean_modules
from mlxcel.runtime.mtp import MtpChain
from mlxcel.types import Request, SamplingParams
from tests.engine.test_mtp import random_head
from tests.support import drafters, tiny

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=8, prefix_bytes=0)
PAGES = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of memory in use, as the system sees them."""
    return int(PAGES.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def our_objects() -> Counter:
    """Python objects of our own classes, by class."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(
        kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("mlxcel")
    )


def active() -> int:
    """Bytes in MLX's buffers that something holds."""
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


def arrays() -> int:
    return sum(isinstance(thing, mx.array) for thing in gc.get_objects())


def some_requests(count: int, rng: random.Random) -> list[Request]:
    """Short prompts and long ones, sampled or not, few of them penalised."""
    return [
        Request(
            prompt_ids=tuple(rng.randrange(tiny.VOCAB) for _ in range(rng.randint(1, 40))),
            params=SamplingParams(
                max_tokens=rng.randint(1, 9), temperature=rng.choice([0.0, 0.9]), seed=index,
                repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]), stop=rng.choice([(), ("AB",)]),
            ),
            width=rng.choice([None, 2, 5]),
        )
        for index in range(count)
    ]  # fmt: skip


def serve(engine: Engine, requests: list[Request], rng: random.Random) -> None:
    """Up to twice as many at once as there are rows; every ninth is cancelled on its way."""
    pending, served = list(requests), 0
    while pending or engine.busy:
        while pending and len(engine.scheduler.unfinished) < 2 * SETTINGS.max_rows:
            number = engine.add(pending.pop())
            served += 1
        for chunk in engine.step():
            del chunk
        if served % 9 == 0 and rng.random() < 0.2:
            engine.cancel(number)


def engine_of(kind: str) -> Engine:
    inner = tiny.llama_model()
    lean_modules(inner)
    model = tiny.loaded(inner)
    if kind == "mtp":
        chain = MtpChain(
            random_head(model), slack=SETTINGS.max_width, length_step=SETTINGS.length_step
        )
        return Engine(model, MtpDrafter(chain), SETTINGS)
    return Engine(model, drafters.make(kind, model, SETTINGS), SETTINGS)


def readings(engine: Engine) -> dict[str, int]:
    """Everything that must not grow, with the engine at rest."""
    objects = our_objects().total()  # collects, so before the rest
    return {
        "active": active(),
        "resident": resident(),
        "objects": objects,
        "arrays": arrays(),
        "engine": engine.cache_bytes,
    }


def check_flat(kind: str, count: int, growth: int) -> None:
    """The second half of the requests may not leave more behind than the first one has.

    ``growth`` bounds the resident memory in bytes: an allocator keeps pages for itself.
    """
    rng = random.Random(7)
    engine = engine_of(kind)
    serve(engine, some_requests(count // 2, rng), rng)
    first, kinds = readings(engine), our_objects()
    serve(engine, some_requests(count // 2, rng), rng)
    second = readings(engine)
    more = {name: value for name, value in (our_objects() - kinds).items() if value > 1}
    assert not more, f"objects left behind: {more}"
    assert second["arrays"] <= first["arrays"] + 2
    assert second["active"] <= first["active"] + 16 * 1024
    assert second["engine"] <= max(first["engine"], 2 * 64 * tiny.VOCAB)
    assert second["resident"] - first["resident"] < growth, (first, second)


needs_linux = pytest.mark.skipif(not PAGES.exists(), reason="reads /proc")


@needs_linux
@pytest.mark.parametrize(("kind", "count"), [("lookup", 300), ("mtp", 120)])
def test_three_hundred_requests_leave_nothing_behind(kind, count):
    check_flat(kind, count, growth=64 * 2**20)


@pytest.mark.parametrize("kind", ["lookup", "self", "mtp"])
def test_buffers_do_not_wait_for_the_collector(kind):
    """Keys and values are large: they go when their last user does, not when Python looks."""
    rng = random.Random(5)
    engine = engine_of(kind)
    serve(engine, some_requests(16, rng), rng)
    gc.collect()
    first = active()
    gc.disable()
    try:
        serve(engine, some_requests(24, rng), rng)
        assert active() <= first + 16 * 1024
    finally:
        gc.enable()


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lookup", "mixed", "mtp"])
def test_two_thousand_requests_leave_nothing_behind(kind):
    check_flat(kind, 2000, growth=32 * 2**20)


def test_the_counts_would_notice_what_is_kept():
    """The same check of an engine that keeps its finished requests must fail."""
    rng = random.Random(1)
    engine = engine_of("lookup")
    serve(engine, some_requests(10, rng), rng)
    before, kept = our_objects(), []
    end = engine.scheduler.release
    engine.scheduler.release = lambda state: (kept.append(state), end(state))
    serve(engine, some_requests(10, rng), rng)
    assert (our_objects() - before)["RequestState"] == len(kept) > 2
