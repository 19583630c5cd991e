"""What an engine counts agrees with its completions; one log line per request."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.errors import CapacityError, RequestError
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny
from tests.support.running import drain

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=2, max_queue=4)


class Clock:
    """A millisecond passes between two readings."""

    now = 5.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def some(count: int) -> list[Request]:
    return [
        Request(
            prompt_ids=tuple(1 + (7 * i + j) % 60 for j in range(5 + 9 * i)),
            params=SamplingParams(max_tokens=4 + 5 * i),
            width=1 + i,
        )
        for i in range(count)
    ]


def test_counters_are_the_sums_of_the_completions(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, drafters.make("mixed", model, SETTINGS), SETTINGS, clock=Clock())
    with caplog.at_level(logging.INFO, "mlxcel.requests"):
        ids = [engine.add(each) for each in some(4)]
        with pytest.raises(CapacityError):
            engine.add(some(1)[0])
        with pytest.raises(RequestError):
            engine.add(Request(prompt_ids=(999,)))
        chunks = [chunk for _ in range(6) for chunk in engine.step()]
        engine.cancel(ids[3])
        _, chunks = drain(engine, chunks)
    done = {each.request_id: each.completion for each in chunks if each.completion}
    found, all_ = engine.snapshot(), list(done.values())
    assert found["received"] == 4
    assert found["refused"] == {"capacity": 1, "request": 1}
    assert found["finished"] == {"length": 3, "cancelled": 1}
    assert found["cancellations"] == 1
    assert found["prompt_tokens"] == sum(each.usage.prompt_tokens for each in all_)
    assert found["generation_tokens"] == sum(each.usage.completion_tokens for each in all_)
    finished = [each.speculation for each in all_ if each.finish_reason == "length"]
    assert found["drafts"] >= sum(n for s in finished for w, n in s.widths if w > 1) > 0
    assert found["accepted_tokens"] == sum(found["accepted_by_position"]) > 0
    assert found["accepted_tokens"] <= found["draft_tokens"]
    decided = {(each["source"], each["run"]): each["count"] for each in found["decisions"]}
    assert decided == {("default", True): 3, ("request", False): 1}
    assert found["running"] == found["waiting"] == found["reading"] == 0
    assert found["bytes"]["caches"] == 0
    assert found["bytes"]["weights"] > 0
    assert sum(found["rounds_by_rows"].values()) == found["rounds"]
    first, between = found["time_to_first_token_seconds"], found["inter_token_seconds"]
    began = [each for each in all_ if each.token_ids]
    assert first["count"] == len(began)
    assert between["count"] == sum(len(each.token_ids) - 1 for each in began)
    assert found["queue_seconds"]["count"] == found["request_seconds"]["count"] == 4
    json.dumps(found)

    lines = [json.loads(r.message) for r in caplog.records if r.name == "mlxcel.requests"]
    assert sorted(line["request"] for line in lines) == ids
    for line in lines:
        assert line["completion_tokens"] == len(done[line["request"]].token_ids)
        assert line["finish"] == done[line["request"]].finish_reason
        assert line["seconds"] > 0


def test_times_add_up() -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, replace(SETTINGS, max_rows=1), clock=Clock())
    ids = [engine.add(each) for each in some(2)]
    done, _ = drain(engine)
    stats = [done[each].speculation for each in ids]
    assert stats[1].queue_seconds > stats[0].decode_seconds > 0
    assert stats[0].queue_seconds < 0.05
    total = engine.metrics.request_seconds.total
    parts = sum(s.queue_seconds + s.prefill_seconds + s.decode_seconds for s in stats)
    assert parts == pytest.approx(total, abs=0.02)


def test_a_failed_engine_says_so() -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, SETTINGS)
    engine.add(some(1)[0])

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no memory")

    engine.batch.verify = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(Exception, match="no memory"):
        drain(engine)
    assert engine.snapshot()["failed"] == "no memory"
    assert engine.snapshot()["finished"] == {"error": 1}


def test_buffers_shrink_when_the_long_request_leaves_and_go_when_all_do() -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, replace(SETTINGS, prefix_bytes=0))
    long = engine.add(Request(prompt_ids=(3,) * 400, params=SamplingParams(max_tokens=5)))
    short = engine.add(Request(prompt_ids=(4,) * 5, params=SamplingParams(max_tokens=90)))
    sizes: dict[int, int] = {}
    ended: set[int] = set()
    while engine.busy:
        ended |= {chunk.request_id for chunk in engine.step() if chunk.completion}
        if engine.batch.rows:
            sizes[len(ended)] = engine.batch.caches.layers[0].capacity
    assert ended == {long, short}
    assert sizes[0] >= 400
    assert sizes[1] <= 192
    assert engine.rows.nbytes == 0
