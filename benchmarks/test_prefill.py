"""Reading a prompt in chunks, against products of matrices."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from benchmarks.model import prompt, small_model
from benchmarks.reference import Reference
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.prefill import Prefill

TOKENS = 256


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    """The benchmarks' own model."""
    return small_model()


@pytest.mark.parametrize("chunk", [64, 256])
@pytest.mark.benchmark(group="prefill of 256 tokens")
def test_prefill(measure: Any, product: Reference, small: LoadedModel, chunk: int) -> None:
    def target() -> Prefill:
        reading = Prefill(
            small.target, prompt(TOKENS), chunk=chunk, slack=16, length_step=256
        )  # fmt: skip
        while not reading.complete:
            reading.advance()
        mx.eval(reading.hidden, reading.caches.state)
        return reading

    reading = measure(target, product, samples=15)
    assert reading.hidden.shape[1] == chunk
