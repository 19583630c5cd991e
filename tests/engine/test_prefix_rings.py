"""Resuming on models with sliding windows: what rings have forgotten is refused, then kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.test_prefix import SYSTEM, WARM, ask, check, gemma, given_back, made
from tests.support import tiny
from tests.support.running import drain, run

__all__ = ["gemma"]


@pytest.mark.parametrize("kind", [None, "self"])
def test_a_ring_that_has_moved_on_is_not_resumed(gemma, kind):
    """Window 32 and slack 16: 45 + 15 tokens have wrapped, so what lies far back is lost."""
    engine = made(kind, gemma)
    run(engine, ask(SYSTEM, 16, kind=kind))
    for user in range(4):  # the first that shares it leaves a copy of the place where they part
        far = ask([*SYSTEM[:40], 51 + user, 9, *range(user)], kind=kind)
        completion = run(engine, far)[0]
        assert completion.usage.cached_tokens == (40 - given_back(kind) if user else 0)
        check(completion, far, gemma, kind)
    short = made(kind, gemma)
    run(short, ask(SYSTEM[:25], 4, kind=kind))  # has not wrapped
    near = ask([*SYSTEM[:20], 51, 52], kind=kind)
    completion = run(short, near)[0]
    assert completion.usage.cached_tokens == 20 - given_back(kind)
    check(completion, near, gemma, kind)


@pytest.mark.parametrize("kind", ["lookup", "self"])
def test_a_place_where_many_part_from_a_row_that_has_moved_on(gemma, kind):
    """The row still runs, far beyond it; the others find the copy that the second leaves."""
    engine = made(kind, gemma)
    first = ask(SYSTEM, 90, kind=kind)
    ids = [engine.add(first)]
    chunks = []
    while sum(len(chunk.token_ids) for chunk in chunks) < 30:
        chunks += engine.step()
    others = [ask([*SYSTEM[:37], 51 + at, 52, at], kind=kind) for at in range(3)]
    ids += [engine.add(request) for request in others]
    done, _ = drain(engine, chunks)
    for request_id, request in zip(ids, [first, *others], strict=True):
        check(done[request_id], request, gemma)
    cached = [done[request_id].usage.cached_tokens for request_id in ids]
    assert cached == [0, 0, *[37 - given_back(kind)] * 2]


@pytest.mark.parametrize("chunk", [8, 16, 64])
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "gemma4-shared"])
def test_every_place_of_a_sliding_model(name, chunk):
    """Resumed or refused, whatever the rings have been through: equal to a cold run."""
    models = {"gemma3": tiny.gemma3_model, "gemma4": tiny.gemma4_model}
    model = tiny.loaded(models[name]() if name in models else tiny.gemma4_model(shared=3))
    settings, served = replace(WARM, prefill_chunk=chunk), []
    text = [(11 * i * i + i) % 50 for i in range(100)]
    for length in (20, 47, 70):
        for cut in (17, 31, 33, 46, 60, 69):
            engine = made(None, model, settings)
            run(engine, ask(text[:length], 3))
            request = ask([*text[: min(cut, length)], *range(51, 60)], 6)
            completion = run(engine, request)[0]
            again = replace(request, prompt_ids=(*request.prompt_ids, *completion.token_ids, 3))
            twice = run(engine, again)[0]  # from a row that was resumed itself
            thrice = run(engine, request)[0]
            served += [done.usage.cached_tokens for done in (completion, twice, thrice)]
            cold = made(None, model, replace(settings, prefix_bytes=0))
            assert completion.token_ids == run(cold, request)[0].token_ids, (length, cut)
            assert completion.token_ids == thrice.token_ids, (length, cut)
            assert twice.token_ids == run(cold, again)[0].token_ids, (length, cut)
    assert 10 < sum(count > 0 for count in served) < len(served)


def test_a_kept_copy_is_not_changed_by_those_it_serves(gemma):
    engine = made("self", gemma)
    run(engine, ask(SYSTEM, 16, kind="self"))
    kept = dict(engine.prefixes.store._kept)
    held = [np.array(a) for k in kept.values() for a in (*k.target.state, *k.drafter.state)]
    answer = run(engine, ask(SYSTEM, 16, kind="self"))[0].token_ids
    for tail in (1, 30):
        prompt = [*SYSTEM, *answer, *range(tail)]
        assert run(engine, ask(prompt, kind="self"))[0].usage.cached_tokens
    after = [np.array(a) for k in kept.values() for a in (*k.target.state, *k.drafter.state)]
    for ours, theirs in zip(held, after, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_caches_that_cannot_be_cut_are_neither_kept_nor_shared():
    model = tiny.loaded(tiny.mamba_model())
    engine = made(None, model)
    first, second = ask(SYSTEM), ask([*SYSTEM, 51, 52])
    for request in (first, second):
        completion = run(engine, request)[0]
        assert completion.usage.cached_tokens == 0
        check(completion, request, model)
    assert engine.prefix_bytes == 0
