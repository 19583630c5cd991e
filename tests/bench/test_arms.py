"""The arms on a tiny real model, through the public API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mlxcel.bench.arms import LlmRunner
from mlxcel.bench.protocol import Plan, measure
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.errors import ConfigError
from mlxcel.llm import LLM
from tests.support import drafters, tiny

SETTINGS = Settings(length_step=64, prefill_chunk=16, prefix_bytes=0)
TEXT = "012345601234560123456"


def build() -> Engine:
    model = tiny.loaded(tiny.llama_model(), eos=(3,))
    return Engine(model, drafters.make("lookup", model, SETTINGS), SETTINGS)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(build) as made:
        yield made


def test_both_arms_give_the_same_tokens_and_count_what_they_did(llm):
    runner = LlmRunner(llm)
    plain, fast = runner.run(TEXT, None, 30), runner.run(TEXT, 4, 30)
    assert plain.token_ids == fast.token_ids
    assert len(plain.token_ids) == 30, "the end of the text is ignored"
    assert (plain.rounds, plain.width_max, plain.proposed) == (29, 1, 0)
    assert fast.rounds < 29
    assert fast.width_max == 4
    assert sum(fast.accepted_by_position) == fast.accepted == 29 - fast.rounds
    for done in (plain, fast):
        run = done.as_run(speculative=done is fast, started=1.0)
        assert run.tokens == 29
        assert run.speed == pytest.approx(done.speed)
        assert not run.profiling


def test_the_margin_is_that_of_the_two_best_tokens(llm):
    def logits(engine: Engine) -> list[float]:
        import mlx.core as mx

        ids = list(llm.encode(TEXT))
        values = engine.model.target.model(mx.array([ids]))[0, -1]
        return sorted(values.tolist(), reverse=True)[:2]

    best, second = llm.call(logits)
    margin = LlmRunner(llm).margin(TEXT, 0)
    assert margin == pytest.approx(best - second, abs=1e-4)
    assert LlmRunner(llm).margin(TEXT, 12) is not None


def test_one_token_has_no_time(llm):
    with pytest.raises(ConfigError, match="at least 2 tokens"):
        LlmRunner(llm).run(TEXT, None, 1)


def test_the_protocol_runs_on_a_real_model(llm):
    now = iter(range(1000, 2000))
    said: list[str] = []
    plan = Plan(prompts={"digits": TEXT}, widths=(2, 4), tokens=40, blocks=1)

    def clock() -> float:
        return 10.0 * next(now)

    def sleep(seconds: float) -> None:
        raise AssertionError("no pause was asked for")

    cells = list(measure(LlmRunner(llm), plan, clock=clock, sleep=sleep, say=said.append))
    assert [cell.width for cell in cells] == [2, 4]
    for cell in cells:
        assert cell.first_difference is None
        assert len({run.ids_sha256 for run in cell.raw.in_order()}) == 1
        assert all(run.tokens == 39 for run in cell.raw.in_order())
        assert max(run.width_max for run in cell.raw.of("speculative")) == cell.width
    assert said[-1] == "digits: block 1 of 1"


def test_a_policy_that_measures_is_noticed():
    class Profiled:
        has_chat_template = True
        asked: Any = None

        def generate(self, prompt: Any, **options: Any) -> Any:
            self.asked = prompt
            return completion(source="policy")

        def mtp_policy(self) -> list[dict[str, Any]]:
            return [{"width": 2, "state": "settled"}, {"width": 4, "state": self.state}]

        state = "profiling"

    llm: Any = Profiled()
    assert LlmRunner(llm).run("text", 4, 3).profiling
    assert llm.asked == [{"role": "user", "content": "text"}]
    llm.state = "settled"
    assert not LlmRunner(llm).run("text", 4, 3).profiling


def completion(source: str) -> Any:
    from mlxcel.types import Completion, Decision, SpecStats, Usage

    return Completion(
        text="", token_ids=(1, 2, 3), drafted=(False,) * 3, finish_reason="length",
        usage=Usage(1, 3), seed=0,
        decision=Decision(run=True, width=4, kind="mtp", source=source, reason=""),
        speculation=SpecStats(kind="mtp", ran=True, reason="", rounds=1, decode_seconds=0.1),
    )  # fmt: skip
