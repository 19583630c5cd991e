"""What kept prefixes take: bytes counted right, within the budget, and nothing held besides."""

from __future__ import annotations

import gc
from dataclasses import replace

import mlx.core as mx

from tests.engine.test_prefix import SYSTEM, WARM, ask, llama, made
from tests.support.running import one, run

__all__ = ["llama"]


def active_memory() -> int:
    gc.collect()  # of the last round
    mx.synchronize()
    return mx.get_active_memory()


def test_bytes_are_those_of_the_copies_and_nothing_else_is_held(llama):
    for kind in (None, "self", "mtp"):
        engine = made(kind, llama)
        one(engine, [1, 2], max_tokens=4)  # buffers that are made once
        before = active_memory()
        request = ask(SYSTEM, 16, kind=kind)
        run(engine, request)
        tokens, per_token = 60, 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads of 8, float32
        expected = tokens * per_token + 4 * 61
        if kind == "self":
            expected += (tokens - 1) * per_token
        if kind == "mtp":
            expected += tokens * per_token // 2
        assert engine.prefix_bytes == engine.cache_bytes == expected
        assert engine.prefixes.store.snapshot()["bytes"] == expected
        assert active_memory() - before < 1.1 * expected
        engine.clear_prefixes()
        assert engine.prefix_bytes == engine.cache_bytes == 0
        assert active_memory() - before < 0.1 * expected


def test_the_budget_holds_and_the_least_recently_used_goes(llama):
    needs = 60 * 2 * 2 * 2 * 8 * 4 + 4 * 61
    engine = made(None, llama, replace(WARM, prefix_bytes=2 * needs))
    prompts = [[50 + at, *SYSTEM[1:]] for at in range(3)]
    for prompt in (prompts[0], prompts[1], prompts[0], prompts[2]):  # the second one goes
        run(engine, ask(prompt))
        assert engine.prefix_bytes <= 2 * needs
    assert engine.prefixes.store.snapshot()["evicted"] == 1
    for prompt, cached in ((prompts[0], 44), (prompts[2], 44), (prompts[1], 0)):
        assert run(engine, ask(prompt))[0].usage.cached_tokens == cached
    run(engine, ask([*SYSTEM, *SYSTEM, *SYSTEM]))  # larger than the budget
    assert engine.prefixes.store.snapshot()["evicted"] == 2


def test_rows_are_written_in_place_after_a_copy_was_taken(llama):
    """A copy that kept hold of the batch's buffers would make every later write copy them."""
    settings = replace(WARM, length_step=16384)
    engine = made(None, llama, settings)
    chunks = []
    engine.add(ask(SYSTEM, 60))
    engine.add(ask([*SYSTEM, 51], 8))  # from the row of the first; it ends while that goes on
    peaks = []
    while engine.busy:
        active = active_memory()
        mx.reset_peak_memory()
        chunks += engine.step()
        mx.synchronize()
        peaks.append(mx.get_peak_memory() - active)
    done = {chunk.request_id: chunk.completion for chunk in chunks if chunk.completion}
    assert done[1].usage.cached_tokens == 45
    assert engine.prefixes.store.snapshot()["stored"] == 2
    row = 16384 * 2 * 2 * 2 * 8 * 4
    assert max(peaks) > row  # joining makes a buffer of two rows
    assert sum(peak > row / 8 for peak in peaks) < 8, peaks
