"""Rows join and leave between rounds; each gets its solo output."""

from __future__ import annotations

import random

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.errors import RequestError
from mlxcel.runtime.prefill import Prefill
from mlxcel.types import Request, SamplingParams
from tests.engine.test_twin import MODELS
from tests.support import drafters, tiny
from tests.support.running import drain, one, run

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=4)


def some_requests(count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    requests = []
    for index in range(count):
        penalised = rng.random() < 0.4
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 5, 20, 45, 70]),
            temperature=rng.choice([0.0, 0.0, 0.8, 1.3]),
            top_k=rng.choice([0, 0, 7]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.05]),
            repetition_penalty=1.3 if penalised else 1.0,
            frequency_penalty=0.4 if penalised else 0.0,
            logit_bias={5: -100.0, 9: 1.5} if rng.random() < 0.3 else {},
            seed=1000 + index,
            logprobs=rng.choice([None, None, 3]),
            stop_token_ids=(17,) if rng.random() < 0.3 else (),
            stop=("AB",) if rng.random() < 0.2 else (),
        )
        prompt = tuple(rng.randrange(tiny.VOCAB) for _ in range(rng.randrange(1, 60)))
        requests.append(
            Request(
                prompt_ids=prompt,
                params=params,
                width=rng.randrange(1, 9),
                speculation=rng.choice(["auto", "auto", "off"]),
            )
        )
    return requests


@pytest.mark.parametrize("drafter", [None, "lookup", "self", "mixed"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_many_joining_and_leaving_give_solo_outputs(name, drafter):
    model = tiny.loaded(MODELS[name](), eos=(2,))
    requests = some_requests(16, seed=len(name))
    make = (lambda: drafters.make(drafter, model, SETTINGS)) if drafter else (lambda: None)
    solo = [run(Engine(model, None, SETTINGS), request)[0] for request in requests]
    engine = Engine(model, make(), SETTINGS)
    ids, pending = [], list(requests)
    done = {}
    steps = 0
    while pending or engine.busy:
        if pending and steps % 3 == 0:
            ids.append(engine.add(pending.pop(0)))
        for chunk in engine.step():
            if chunk.completion:
                done[chunk.request_id] = chunk.completion
        steps += 1
    for request_id, alone in zip(ids, solo, strict=True):
        together = done[request_id]
        assert together.token_ids == alone.token_ids
        assert together.text == alone.text
        assert together.finish_reason == alone.finish_reason
        if alone.logprobs is not None:
            assert len(together.logprobs) == len(alone.token_ids)
            for ours, theirs in zip(together.logprobs, alone.logprobs, strict=True):
                assert ours.token_id == theirs.token_id
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
                assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]
    assert engine.scheduler.table.live == 0
    assert engine.cache_bytes - engine.prefix_bytes < 10_000 or drafter == "lookup"


@pytest.mark.parametrize("drafter", [None, "lookup", "self"])
def test_cancel_at_every_moment_frees_the_slot_and_disturbs_nobody(drafter):
    model = tiny.loaded(tiny.llama_model())
    make = (lambda: drafters.make(drafter, model, SETTINGS)) if drafter else (lambda: None)
    keep = Request(prompt_ids=(1, 2, 3, 4), params=SamplingParams(max_tokens=40), width=4)
    victim = Request(
        prompt_ids=tuple(range(40)), params=SamplingParams(max_tokens=30), width=5
    )
    alone = run(Engine(model, None, SETTINGS), keep)[0]
    cancelled = 0
    for moment in range(14):
        engine = Engine(model, make(), SETTINGS)
        kept = engine.add(keep)
        other = engine.add(victim)
        done = {}
        for step in range(300):
            if step == moment and other not in done:
                assert engine.cancel(other)
                cancelled += 1
            for chunk in engine.step():
                if chunk.completion:
                    done[chunk.request_id] = chunk.completion
            if not engine.busy:
                break
        assert done[kept].token_ids == alone.token_ids
        assert done[other].finish_reason in ("cancelled", "length")
        assert engine.scheduler.table.live == 0
        assert not engine.cancel(other)
    assert cancelled >= 9


def test_a_bad_request_changes_nothing():
    model = tiny.loaded(tiny.llama_model(), context=50)
    engine = Engine(model, None, SETTINGS)
    bad = [
        Request(prompt_ids=(64,)),
        Request(prompt_ids=(1,) * 40, params=SamplingParams(max_tokens=11)),
        Request(prompt_ids=(1,), params=SamplingParams(max_tokens=5, logit_bias={64: 1.0})),
        Request(prompt_ids=(1,), params=SamplingParams(max_tokens=5), width=17),
        Request(prompt_ids=(1,), params=SamplingParams(max_tokens=5), speculation="on"),
    ]
    for request in bad:
        with pytest.raises(RequestError):
            engine.add(request)
    assert not engine.busy
    assert len(one(engine, (1, 2), max_tokens=5).token_ids) == 5


def test_context_error_names_both_numbers():
    engine = Engine(tiny.loaded(tiny.llama_model(), context=50), None, SETTINGS)
    with pytest.raises(RequestError, match=r"51.*50"):
        engine.add(Request(prompt_ids=(1,) * 40, params=SamplingParams(max_tokens=11)))


def test_a_failing_prefill_ends_its_own_request_only(monkeypatch):
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, SETTINGS)
    good = engine.add(Request(prompt_ids=(1, 2), params=SamplingParams(max_tokens=20)))
    early = engine.step()
    real = Prefill.advance

    def fails(self):
        if self.length == 3:
            raise RuntimeError("out of memory")
        real(self)

    monkeypatch.setattr(Prefill, "advance", fails)
    bad = engine.add(Request(prompt_ids=(1, 2, 3), params=SamplingParams(max_tokens=20)))
    after = engine.add(Request(prompt_ids=(1, 2), params=SamplingParams(max_tokens=20)))
    done, _ = drain(engine, early)
    assert done[bad].finish_reason == "error"
    assert "out of memory" in done[bad].error
    assert done[good].token_ids == done[after].token_ids


def test_a_failing_drafter_is_parked_and_says_so():
    model = tiny.loaded(tiny.llama_model())
    drafter = drafters.make("self", model, SETTINGS)
    engine = Engine(model, drafter, SETTINGS)
    alone = one(Engine(model, None, SETTINGS), (1, 2, 3), max_tokens=30)
    calls = iter(range(100))
    real = drafter.draft

    def breaks(batch, plan):
        if next(calls) == 3:
            raise ValueError("no idea")
        return real(batch, plan)

    drafter.draft = breaks
    completion = one(engine, (1, 2, 3), 4, max_tokens=30)
    assert completion.token_ids == alone.token_ids
    assert "no idea" in completion.speculation.reason
    assert "no idea" in one(engine, (1, 2, 3), max_tokens=5).speculation.reason
