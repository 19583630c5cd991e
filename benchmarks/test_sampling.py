"""Choosing the tokens of a block, by what is asked for, against products of matrices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.reference import Reference
from mlxcel.runtime.sampling import RowSampler
from mlxcel.types import SamplingParams

VOCABULARY = 49152
WIDTH = 4
PROMPT = range(100, 200)


@dataclass(frozen=True)
class Case:
    """Parameters of a request, and how often one sample chooses."""

    calls: int
    params: dict[str, Any] = field(default_factory=dict)


CASES = {
    "greedy": Case(40),
    "temperature": Case(3, {"temperature": 0.8}),
    "top-k": Case(1, {"temperature": 0.8, "top_k": 40}),
    "top-p": Case(1, {"temperature": 0.8, "top_p": 0.9}),
    "min-p": Case(2, {"temperature": 0.8, "min_p": 0.05}),
    "all filters": Case(1, {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}),
    "penalties": Case(2, {"repetition_penalty": 1.1, "frequency_penalty": 0.2}),
    "log-probabilities": Case(2, {"logprobs": 5}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.benchmark(group="sampling")
def test_choose(measure: Any, product: Reference, name: str) -> None:
    """One row, a block of 4."""
    case = CASES[name]
    params = SamplingParams(seed=1, **case.params)
    sampler = RowSampler.for_prompt(VOCABULARY, params, PROMPT)
    logits = 3.0 * mx.random.normal((1, WIDTH, VOCABULARY), key=mx.random.key(7))
    block = mx.array([[5, 6, 7, 8]], mx.uint32)
    positions = mx.arange(100, 100 + WIDTH, dtype=mx.int32)[None]
    mx.eval(logits, block, positions)

    def target() -> mx.array:
        for _ in range(case.calls):
            choice = sampler.choose(logits, block, positions)
            asked = [choice.tokens, choice.logprobs, choice.top_ids]
            mx.eval([each for each in asked if each is not None])
        return choice.tokens

    tokens = measure(target, product)
    assert tokens.shape == (1, WIDTH)
    if params.greedy and not params.penalised:
        assert tokens.tolist() == mx.argmax(logits, axis=-1).tolist()
