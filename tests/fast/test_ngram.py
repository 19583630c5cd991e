"""`NgramIndex` against a linear scan: exhaustive for small alphabets, then random and long."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mlxcel._fast import NgramIndex
from tests.oracle.ngram import propose


def uint32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def proposals(index: NgramIndex, slots: list[int], want: int) -> list[list[int]]:
    """What the index proposes for slots, as lists."""
    rows = len(slots)
    out = np.full((rows, max(1, want)), 77, np.uint32)
    counts = np.full(rows, -1, np.int32)
    total = index.propose(int32(*slots), np.full(rows, want, np.int32), out, counts)
    assert total == counts.sum()
    assert all((out[row, counts[row] :] == 77).all() for row in range(rows))
    return [out[row, : counts[row]].tolist() for row in range(rows)]


@pytest.mark.parametrize(("tokens", "length"), [(1, 9), (2, 9), (3, 7)])
@pytest.mark.parametrize(("min_n", "max_n"), [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_every_history(tokens: int, length: int, min_n: int, max_n: int) -> None:
    histories = list(itertools.product(range(tokens), repeat=length))
    rows = len(histories)
    index = NgramIndex(rows, min_n, max_n)
    array = np.array(histories, np.uint32)
    slots = list(range(rows))
    for size in range(1, length + 1):
        column = np.ascontiguousarray(array[:, size - 1 : size])
        index.extend_round(int32(*slots), np.ones(rows, np.int32), column)
        known: dict[tuple[int, ...], list[int]] = {}
        for row, proposed in enumerate(proposals(index, slots, 3)):
            history = histories[row][:size]
            if history not in known:
                known[history] = propose(history, 3, min_n, max_n)
            assert proposed == known[history], history


@pytest.mark.parametrize("alphabet", [2, 5, 50, 2**32])
@pytest.mark.parametrize(("min_n", "max_n"), [(1, 2), (2, 4), (2, 8)])
def test_random_and_long(alphabet: int, min_n: int, max_n: int) -> None:
    generator = np.random.default_rng(alphabet + max_n)
    index = NgramIndex(3, min_n, max_n)
    histories: list[list[int]] = [[], [], []]
    matched = 0
    while len(histories[2]) < 600:
        counts = generator.integers(0, 40, 3).astype(np.int32)
        tokens = generator.integers(0, alphabet, (3, 40), dtype=np.uint32)
        if alphabet > 50 and len(histories[2]) > 50:  # else nothing would ever repeat
            start = int(generator.integers(0, 10))
            tokens[2] = histories[2][start : start + 40]
        slots = generator.permutation(3).astype(np.int32) if alphabet <= 50 else int32(0, 1, 2)
        index.extend_round(slots, counts, tokens)
        for row, slot in enumerate(slots):
            histories[slot] += tokens[row, : counts[row]].tolist()
            assert index.size(slot) == len(histories[slot])
        expected = [propose(history, 9, min_n, max_n) for history in histories]
        assert proposals(index, [0, 1, 2], 9) == expected
        matched += any(expected)
    assert matched


def test_extend_equals_token_by_token_and_extend_round() -> None:
    tokens = np.random.default_rng(5).integers(0, 6, 3000, dtype=np.uint32)
    index = NgramIndex(3)
    index.extend(0, tokens)
    for position in range(len(tokens)):
        index.extend(1, tokens[position : position + 1])
        index.extend_round(int32(2), int32(1), tokens[None, position : position + 1])
    first, second, third = proposals(index, [0, 1, 2], 50)
    assert first == second == third == propose(tokens.tolist(), 50)


def test_by_hand() -> None:
    index = NgramIndex(1)
    index.extend(0, uint32(1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3))
    assert proposals(index, [0], 2) == [[4, 9]]  # three tokens match, though two are nearer
    assert proposals(index, [0], 0) == [[]]
    index.extend(0, uint32(6))
    assert proposals(index, [0], 2) == [[]]
    index.reset(0)
    index.extend(0, uint32(7, 7, 7))
    assert proposals(index, [0], 9) == [[7]]  # overlaps, and stops at the end
    assert proposals(index, [0, 0], 1) == [[7], [7]]


def test_reset_frees() -> None:
    index = NgramIndex(2)
    assert index.nbytes == 0
    index.extend(0, np.arange(5000, dtype=np.uint32))
    assert index.nbytes > 20000
    index.extend(1, uint32(1))
    index.reset(0)
    index.reset(0)
    assert 0 < index.nbytes < 10000
    assert (index.size(0), index.size(1)) == (0, 1)
    index.reset(1)
    assert index.nbytes == 0
    index.extend(1, uint32())
    assert index.nbytes == 0


def test_more_rows_than_slots_named_are_padding() -> None:
    index = NgramIndex(2, 1, 2)
    index.extend_round(int32(1), int32(3, 99), np.full((4, 3), 4, np.uint32))
    assert (index.size(0), index.size(1)) == (0, 3)
    out = np.zeros((3, 2), np.uint32)
    counts = np.full(3, -1, np.int32)
    assert index.propose(int32(1), int32(2, -5), out, counts) == 1
    assert counts.tolist() == [1, -1, -1]
    index.extend_round(int32(), int32(), np.zeros((0, 0), np.uint32))
    assert index.propose(int32(), int32(), out, counts) == 0


BLOCK = np.zeros((2, 3), np.uint32)
REFUSED: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
    (IndexError, "reset", (2,)),
    (IndexError, "reset", (-1,)),
    (TypeError, "reset", (True,)),
    (TypeError, "reset", (None,)),
    (IndexError, "size", (2,)),
    (IndexError, "extend", (2, uint32(1))),
    (TypeError, "extend", (0.0, uint32(1))),
    (TypeError, "extend", (0, None)),
    (TypeError, "extend", (0, [1, 2])),
    (ValueError, "extend", (0, int32(1, 2))),
    (ValueError, "extend", (0, BLOCK)),
    (ValueError, "extend", (0, uint32(1, 2, 3, 4)[::2])),
    (IndexError, "extend_round", (int32(0, 2), int32(1, 1), BLOCK)),
    (IndexError, "extend_round", (int32(0, -1), int32(1, 1), BLOCK)),
    (ValueError, "extend_round", (int32(0, 0), int32(1, 1), BLOCK)),
    (ValueError, "extend_round", (int32(0, 1), int32(1), BLOCK)),
    (ValueError, "extend_round", (int32(0, 1), int32(1, 1), BLOCK[:1])),
    (ValueError, "extend_round", (int32(0, 1), int32(1, 4), BLOCK)),
    (ValueError, "extend_round", (int32(0, 1), int32(1, -1), BLOCK)),
    (ValueError, "extend_round", (int32(0, 1), int32(1, 1), BLOCK.astype(np.int32))),
    (ValueError, "extend_round", (int32(0, 1), uint32(1, 1), BLOCK)),
    (ValueError, "extend_round", (int32(0, 1), int32(1, 1), BLOCK.T)),
    (TypeError, "extend_round", (None, int32(1, 1), BLOCK)),
    (TypeError, "extend_round", (int32(0, 1), None, BLOCK)),
    (TypeError, "extend_round", (int32(0, 1), int32(1, 1), None)),
    (IndexError, "propose", (int32(0, 2), int32(1, 1), BLOCK, int32(5, 5))),
    (ValueError, "propose", (int32(0, 1), int32(1, 4), BLOCK, int32(5, 5))),
    (ValueError, "propose", (int32(0, 1), int32(1, -1), BLOCK, int32(5, 5))),
    (ValueError, "propose", (int32(0, 1), int32(1), BLOCK, int32(5, 5))),
    (ValueError, "propose", (int32(0, 1), int32(1, 1), BLOCK[:1], int32(5, 5))),
    (ValueError, "propose", (int32(0, 1), int32(1, 1), BLOCK, int32(5))),
    (ValueError, "propose", (int32(0, 1), int32(1, 1), BLOCK.astype(np.int64), int32(5, 5))),
    (TypeError, "propose", (int32(0, 1), int32(1, 1), None, int32(5, 5))),
    (TypeError, "propose", (int32(0, 1), int32(1, 1), BLOCK, None)),
]


@pytest.mark.parametrize(("error", "name", "arguments"), REFUSED)
def test_refused_and_unchanged(
    error: type[Exception], name: str, arguments: tuple[Any, ...]
) -> None:
    index = NgramIndex(2)
    index.extend(0, uint32(1, 2, 3, 1, 2))
    index.extend(1, uint32(4, 5, 4, 5))
    before = proposals(index, [0, 1], 9), index.size(0), index.size(1), index.nbytes
    block = BLOCK.copy()
    with pytest.raises(error):
        getattr(index, name)(*arguments)
    after = proposals(index, [0, 1], 9), index.size(0), index.size(1), index.nbytes
    assert after == before
    assert (block == BLOCK).all()
    if name == "propose" and arguments[3] is not None:
        assert (arguments[3] == 5).all()


def test_out_that_cannot_be_written() -> None:
    out = np.zeros((1, 3), np.uint32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        NgramIndex(1).propose(int32(0), int32(1), out, int32(0))


@pytest.mark.parametrize("sizes", [(0,), (2**20,), (1, 0), (1, 3, 2), (1, 1, 65), (1, -1, -1)])
def test_sizes_out_of_range(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        NgramIndex(*sizes)


@pytest.mark.parametrize("sizes", [(True,), (1.0,), (1, "2"), (1, 2, None)])
def test_sizes_of_the_wrong_type(sizes: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        NgramIndex(*sizes)
