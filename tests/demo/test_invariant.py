"""Invariant numerics on the real checkpoint with the packaged head: equal to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlxcel.engine.engine import Engine
from mlxcel.engine.exactness import probe_exactness
from mlxcel.engine.prepare import make_drafter
from mlxcel.types import Completion, Request, SamplingParams
from tests.demo.support import PENALTIES, SETTINGS, Demo
from tests.support.running import one, run

pytestmark = pytest.mark.demo

TEXT = "Write a Python function that adds two numbers."
INVARIANT = replace(SETTINGS, numerics="invariant", default_width=8)
PARAMS: dict[float, dict[str, Any]] = {
    0.0: {"max_tokens": 14, "logprobs": 1, "ignore_eos": True, "seed": 3},
    0.7: {"max_tokens": 14, "logprobs": 1, "ignore_eos": True, "seed": 3, "temperature": 0.7},
    1.3: {"max_tokens": 14, "logprobs": 1, "ignore_eos": True, "seed": 3, "temperature": 1.3}
    | PENALTIES,
}


def engines(fast: Engine) -> tuple[tuple[int, ...], Engine]:
    """A prompt, and an engine in invariant numerics on the same weights."""
    prompt = fast.model.tokenizer.apply_chat_template(
        [{"role": "user", "content": TEXT}], add_generation_prompt=True
    )
    drafter = make_drafter("demo", fast.model, INVARIANT)
    return tuple(prompt), Engine(fast.model, drafter, INVARIANT)


@pytest.mark.parametrize("temperature", PARAMS)
def test_alone(demo: Demo, temperature: float) -> None:
    params = PARAMS[temperature]

    def work(fast: Engine) -> tuple[Completion, Completion, list[Completion]]:
        prompt, engine = engines(fast)
        request = Request(prompt_ids=prompt, params=SamplingParams(**params), speculation="off")
        wanted, classic = run(fast, request)[0], run(engine, request)[0]
        return wanted, classic, [one(engine, prompt, width, **params) for width in (2, 5, 8)]

    wanted, classic, twins = demo.llm.call(work)
    assert classic.token_ids == wanted.token_ids
    for twin in twins:
        assert twin.token_ids == classic.token_ids
        assert twin.logprobs == classic.logprobs
        assert twin.speculation.ran


def test_together(demo: Demo) -> None:
    def work(fast: Engine) -> tuple[list[Completion], list[Completion]]:
        prompt, engine = engines(fast)
        requests = [
            Request(prompt_ids=prompt, params=SamplingParams(**params), width=width)
            for params, width in zip(PARAMS.values(), (2, 5, 8), strict=True)
        ]
        alone = [run(engine, replace(r, speculation="off"))[0] for r in requests]
        return alone, run(engine, *requests)

    for classic, twin in zip(*demo.llm.call(work), strict=True):
        assert twin.token_ids == classic.token_ids
        assert twin.text == classic.text


def test_the_probe_finds_bitwise(demo: Demo) -> None:
    record = demo.llm.call(lambda fast: probe_exactness(fast.model.target, 5, INVARIANT))
    assert record.level == "bitwise", record.reason
