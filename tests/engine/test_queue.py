"""Priorities, the bounded queue, deadlines, the byte budget, and being pushed back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.reading import Reading
from mlxcel.errors import CapacityError
from mlxcel.types import Completion, Request, SamplingParams
from tests.engine.test_batching import some_requests
from tests.engine.test_twin import MODELS
from tests.support import drafters, tiny
from tests.support.running import drain, run

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=2, prefix_bytes=0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def request(tokens: int = 12, prompt: int = 5, priority: int = 0, **params: object) -> Request:
    return Request(
        prompt_ids=tuple(1 + index % 60 for index in range(prompt)),
        params=SamplingParams(max_tokens=tokens, **params),  # type: ignore[arg-type]
        priority=priority,
    )


def bytes_of(engine: Engine, *requests: Request) -> int:
    assert engine.scheduler.budget is not None
    return engine.scheduler.budget.cost.bytes_of(
        [len(each.prompt_ids) + each.params.max_tokens for each in requests]
    )


def test_the_queue_is_served_by_priority_then_arrival() -> None:
    engine = Engine(tiny.loaded(tiny.llama_model()), None, replace(SETTINGS, max_rows=1))
    ids = [engine.add(request(3, priority=p)) for p in (5, 0, 5, -1, 0)]
    ended: list[int] = []
    while engine.busy:
        ended += [c.request_id for c in engine.step() if c.completion is not None]
    assert ended == [ids[3], ids[1], ids[4], ids[0], ids[2]]


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    engine = Engine(tiny.loaded(tiny.llama_model()), None, replace(SETTINGS, max_queue=3))
    ids = [engine.add(request()) for _ in range(3)]
    with pytest.raises(CapacityError, match=r"3 requests wait already and MLXCEL_MAX_QUEUE is 3"):
        engine.add(request())
    done, _ = drain(engine)
    assert sorted(done) == ids
    engine.add(request())  # there is room again
    drain(engine)


@pytest.mark.parametrize("place", ["waiting", "reading", "running"])
def test_a_timeout_ends_a_request_wherever_it_stands(place: str) -> None:
    clock = Clock()
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, replace(SETTINGS, max_rows=1), clock=clock)
    whole = run(Engine(model, None, SETTINGS), request(30, 40))[0]
    chunks = []
    if place == "waiting":
        engine.add(request(60))
        chunks += engine.step()
    late = engine.add(replace(request(30, 40), timeout=2.0))
    steps = {"waiting": 1, "reading": 1, "running": 8}[place]
    chunks += [chunk for _ in range(steps) for chunk in engine.step()]
    where = next(s for s in engine.scheduler.unfinished if s.id == late).phase.value
    assert where == {"waiting": "waiting", "reading": "prefill", "running": "running"}[place]
    clock.now += 1.9
    chunks += engine.step()
    assert not any(c.request_id == late and c.completion for c in chunks)
    clock.now += 0.2
    done, _ = drain(engine, chunks)
    assert done[late].finish_reason == "timeout"
    assert done[late].token_ids == whole.token_ids[: len(done[late].token_ids)]
    assert bool(done[late].token_ids) == (place == "running")
    assert not engine._timed


def test_a_request_over_the_ceiling_is_refused_with_both_numbers() -> None:
    model = tiny.loaded(tiny.llama_model())
    free = Engine(model, None, SETTINGS)
    small, large = request(20), request(300)
    ceiling = bytes_of(free, small)
    engine = Engine(model, None, replace(SETTINGS, cache_bytes=ceiling))
    with pytest.raises(CapacityError, match=f"{bytes_of(free, large):,} .* {ceiling:,}"):
        engine.add(large)
    assert run(engine, small)[0].token_ids == run(free, small)[0].token_ids


@pytest.mark.parametrize("drafter", [None, "self"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_what_is_booked_is_never_less_than_what_is_taken(name: str, drafter: str | None) -> None:
    model = tiny.loaded(MODELS[name]())
    settings = replace(SETTINGS, max_rows=4)
    made = drafters.make(drafter, model, settings) if drafter else None
    engine = Engine(model, made, settings)
    for index, tokens in enumerate((10, 70, 130, 45)):
        engine.add(replace(request(tokens, 3 + 20 * index), width=3 + index))
    seen = 0
    while engine.busy:
        engine.step()
        held, running = engine.rows.nbytes, list(engine.scheduler.running.values())
        if running and len(running) == engine.batch.rows:
            seen += 1
            assert engine.scheduler.budget is not None
            assert held <= engine.scheduler.budget.bytes_of(running)
    assert seen > 20


def test_requests_wait_for_bytes_and_the_ceiling_is_kept() -> None:
    model = tiny.loaded(tiny.llama_model())
    free = Engine(model, None, replace(SETTINGS, max_rows=4))
    requests = [request(20 + 10 * i) for i in range(6)]
    ceiling = bytes_of(free, *[requests[-1]] * 2)
    engine = Engine(model, None, replace(SETTINGS, max_rows=4, cache_bytes=ceiling))
    ids = [engine.add(each) for each in requests]
    done: dict[int, Completion] = {}
    most = together = 0
    while engine.busy:
        for chunk in engine.step():
            if chunk.completion is not None:
                done[chunk.request_id] = chunk.completion
        most = max(most, engine.rows.nbytes)
        together = max(together, len(engine.scheduler.running))
    assert most <= ceiling
    assert together == 2
    for number, each in zip(ids, requests, strict=True):
        assert done[number].token_ids == run(free, each)[0].token_ids


@pytest.mark.parametrize("prefix_bytes", [0, 1 << 24])
@pytest.mark.parametrize("drafter", [None, "lookup", "self"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_being_pushed_back_changes_no_output(
    name: str, drafter: str | None, prefix_bytes: int
) -> None:
    settings = replace(SETTINGS, prefix_bytes=prefix_bytes)
    model = tiny.loaded(MODELS[name](), eos=(2,))
    long = [each for each in some_requests(20, seed=3) if each.params.max_tokens >= 20][:6]
    requests = [replace(each, priority=5) for each in long]
    urgent = [replace(each, priority=0) for each in some_requests(8, seed=11)]
    solo = [run(Engine(model, None, settings), each)[0] for each in [*requests, *urgent]]
    engine = Engine(model, drafters.make(drafter, model, settings) if drafter else None, settings)
    ids = [engine.add(each) for each in requests]
    done: dict[int, Completion] = {}
    pending = list(urgent)
    while engine.busy:
        low = [each for each in engine.scheduler.unfinished if each.request.priority == 5]
        if pending and len(engine.scheduler.running) == 2 and len(low) == len(
            engine.scheduler.unfinished
        ):
            ids.append(engine.add(pending.pop(0)))
        for chunk in engine.step():
            if chunk.completion is not None:
                done[chunk.request_id] = chunk.completion
    assert len(ids) > 6
    pushed = sum(done[number].speculation.preemptions for number in ids[:6])
    assert pushed >= 1
    assert not any(done[number].speculation.preemptions for number in ids[6:])
    for number, alone in zip(ids, solo, strict=False):
        assert done[number].token_ids == alone.token_ids
        assert done[number].text == alone.text
        assert done[number].finish_reason == alone.finish_reason
        stats = done[number].speculation
        assert sum(count for _, count in stats.widths) == stats.rounds
        assert stats.accepted <= stats.proposed
    assert engine.scheduler.table.live == 0
    assert engine.rows.nbytes == 0 or drafter == "lookup"


def test_a_prompt_being_read_is_pushed_back_too() -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, replace(SETTINGS, max_rows=1))
    long = engine.add(request(5, 200, priority=1))
    engine.step()
    urgent = engine.add(request(5))
    order: list[int] = []
    done: dict[int, Completion] = {}
    while engine.busy:
        for chunk in engine.step():
            if chunk.completion is not None:
                order.append(chunk.request_id)
                done[chunk.request_id] = chunk.completion
    assert order == [urgent, long]
    assert done[long].speculation.preemptions == 1
    alone = run(Engine(model, None, SETTINGS), request(5, 200))[0]
    assert done[long].token_ids == alone.token_ids


def test_cancelled_while_pushed_back() -> None:
    engine = Engine(tiny.loaded(tiny.llama_model()), None, replace(SETTINGS, max_rows=1))
    low = engine.add(request(40, priority=1))
    chunks = [chunk for _ in range(8) for chunk in engine.step()]
    engine.add(request(10))
    chunks += engine.step()
    state = engine.scheduler.waiting[0]
    assert state.id == low
    assert state.preemptions == 1
    assert engine.cancel(low)
    done, _ = drain(engine, chunks)
    assert done[low].finish_reason == "cancelled"
    assert done[low].speculation.rounds > 0
    assert len(done[low].token_ids) == len(state.token_ids) > 0


@pytest.mark.parametrize("ends", ["length", "stop", "text", "error"])
def test_a_timed_request_that_ends_before_its_first_round_is_forgotten(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline once ended it a second time, and the engine with it."""
    clock, model = Clock(), tiny.loaded(tiny.llama_model())
    first = run(Engine(model, None, SETTINGS), request(1))[0]
    more: dict[str, object] = {
        "length": {}, "stop": {"stop_token_ids": first.token_ids}, "text": {"stop": first.text},
        "error": {},
    }[ends]  # type: ignore[assignment]
    engine = Engine(model, None, SETTINGS, clock=clock)
    if ends == "error":
        monkeypatch.setattr(Reading, "advance", lambda self: 1 / 0)
    timed = engine.add(
        replace(request(1 if ends == "length" else 9, **more), timeout=2.0)  # type: ignore[arg-type]
    )
    chunks = engine.step()
    monkeypatch.undo()
    other = engine.add(request(20))
    chunks += [chunk for _ in range(4) for chunk in engine.step()]
    clock.now += 3.0
    done, chunks = drain(engine, chunks)
    ended = [each for each in chunks if each.request_id == timed and each.completion]
    assert len(ended) == 1
    reason = ended[0].completion.finish_reason  # type: ignore[union-attr]
    assert reason == {"length": "length", "error": "error"}.get(ends, "stop")
    assert done[other].finish_reason == "length"
    assert engine.metrics.finished.total() == 2
    assert not engine._timed


def test_a_row_whose_last_round_is_in_flight_is_not_pushed_back() -> None:
    engine = Engine(tiny.loaded(tiny.llama_model()), None, replace(SETTINGS, max_rows=1))
    low = engine.add(request(10, 60, priority=1))
    chunks = []
    while not engine.scheduler.running or not engine.scheduler._planned_out(
        next(iter(engine.scheduler.running.values()))
    ):
        chunks += engine.step()
    high = engine.add(request(5))
    done, _ = drain(engine, chunks)
    done |= {each.request_id: each.completion for each in chunks if each.completion}
    assert done[low].speculation.preemptions == 0
    assert done[high].finish_reason == done[low].finish_reason == "length"


def test_nobody_is_pushed_back_in_invariant_numerics() -> None:
    settings = replace(SETTINGS, max_rows=1, numerics="invariant")
    engine = Engine(tiny.loaded(tiny.llama_model()), None, settings)
    low = engine.add(request(30, priority=1))
    chunks = [chunk for _ in range(8) for chunk in engine.step()]
    engine.add(request(5))
    done, _ = drain(engine, chunks)
    assert done[low].speculation.preemptions == 0
