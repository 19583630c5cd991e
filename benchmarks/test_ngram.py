"""The n-gram index of prompt lookup, by rows, against a loop of Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from benchmarks.reference import Reference
from mlxcel._fast import NgramIndex

WIDTH = 4
HISTORY = 2000
PROPOSALS = {1: 5000, 8: 4000, 32: 4000}
ROUNDS = {1: 3000, 8: 800, 32: 200}
"""Calls of one sample, by rows: some milliseconds."""


@pytest.mark.parametrize("rows", PROPOSALS)
@pytest.mark.benchmark(group="ngram propose", timer=time.thread_time)
def test_propose(measure: Any, loop: Reference, rows: int) -> None:
    """The last 4 tokens of each row have occurred before, in the middle of its history."""
    tokens = np.random.default_rng(rows).integers(0, 30000, (rows, HISTORY), dtype=np.uint32)
    tokens[:, -4:] = tokens[:, HISTORY // 2 : HISTORY // 2 + 4]
    index, slots = NgramIndex(rows), np.arange(rows, dtype=np.int32)
    index.extend_round(slots, np.full(rows, HISTORY, np.int32), tokens)
    want = np.full(rows, WIDTH - 1, np.int32)
    out, counts = np.zeros((rows, WIDTH - 1), np.uint32), np.zeros(rows, np.int32)

    def target() -> int:
        found = 0
        for _ in range(PROPOSALS[rows]):
            found = index.propose(slots, want, out, counts)
        return found

    assert measure(target, loop) == rows * (WIDTH - 1)


@pytest.mark.parametrize("rows", ROUNDS)
@pytest.mark.benchmark(group="ngram extend", timer=time.thread_time)
def test_extend(measure: Any, loop: Reference, rows: int) -> None:
    """Blocks of 4 tokens come in, round by round, to an index that begins empty."""
    slots, counts = np.arange(rows, dtype=np.int32), np.full(rows, WIDTH, np.int32)
    shape = (ROUNDS[rows], rows, WIDTH)
    blocks = list(np.random.default_rng(rows).integers(0, 300, shape, dtype=np.uint32))
    index = NgramIndex(rows)

    def empty() -> None:
        for slot in range(rows):
            index.reset(slot)

    def target() -> None:
        for block in blocks:
            index.extend_round(slots, counts, block)

    measure(target, loop, prepare=empty)
    assert index.size(0) == ROUNDS[rows] * WIDTH
