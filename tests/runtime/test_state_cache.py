"""States of recurrent layers: any accepted part of a block, row by row, as single steps give it.

The reference is mlx-lm's own layer with its own caches, fed token by token.
"""

from __future__ import annotations

import io
from itertools import count
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_update

from mlxcel.config import Settings
from mlxcel.models.gated_delta import Block, State, replayed, use_state_caches
from mlxcel.models.target import Target
from mlxcel.runtime.cache_cost import position_bytes
from mlxcel.runtime.caches import new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.row_copy import RowCopy
from tests.support import tiny
from tests.support.fresh import Fresh

WIDTH, SLACK = 5, 8
SIZES = {"slack": SLACK, "length_step": 16}
CLOSE = 1e-5
"""In parts of the largest value: a projection of many rows rounds otherwise than one of one."""
PER_TOKEN, BESIDE = 4, 30  # operations of a replay, per layer
TEXTS = [
    [(7 * at * at + 3 * at + 11 * row) % tiny.VOCAB for at in range(90)]
    for row in range(4)
]


@pytest.fixture(scope="module")
def targets() -> Any:
    made: dict[str, Target] = {}

    def get(name: str) -> Target:
        if name not in made:
            made[name] = Target(tiny.HYBRIDS[name](), {})
        return made[name]

    return get


def prefilled(target: Target, text: list[int], length: int, chunk: int = 4) -> SlotCache:
    caches = new_caches(target, **SIZES)
    assert isinstance(caches, SlotCache)
    for begin in range(0, length, chunk):
        end = min(begin + chunk, length)
        caches.frame = Frame.exact(begin, end - begin)
        target.hidden(mx.array([text[begin:end]], mx.uint32), caches.layers)
    mx.eval(caches.state)
    return caches


@pytest.mark.parametrize("ragged", [False, True], ids=["host", "device"])
def test_a_replay_is_single_steps_bit_by_bit(targets: Any, ragged: bool) -> None:
    """Of what a block put in, every count of tokens; here no projection comes between."""
    layer = targets("qwen3.5").model.layers[0].linear_attn
    rows, heads, channels = 4, 4, layer.conv_dim
    shapes = [(rows, WIDTH, channels), (rows, WIDTH, 2, 16), (rows, WIDTH, heads, 8),
              (rows, WIDTH, heads), (rows, WIDTH, heads)]  # fmt: skip
    keys = mx.random.split(mx.random.key(1), len(shapes) + 2)
    pairs = zip(shapes, keys, strict=False)
    block = Block(*(mx.random.normal(shape, key=key) for shape, key in pairs))
    state = State(
        mx.random.normal((rows, 3, channels), key=keys[-2]),
        mx.random.normal((rows, heads, 8, 16), key=keys[-1]),
    )
    steps = [state]
    for at in range(WIDTH):
        one = Block(*(part[:, at : at + 1] for part in block))
        inputs = mx.concatenate([steps[-1].window, one.inputs], axis=1)[:, 1:]
        _, memory = gated_delta_update(
            one.keys, one.keys, one.values, one.decay, one.strength, layer.A_log,
            layer.dt_bias, steps[-1].memory,
        )  # fmt: skip
        steps.append(State(inputs, memory))
    for shift in range(1, WIDTH + 1):
        counts = [(shift + row) % (WIDTH + 1) if ragged else shift for row in range(rows)]
        if ragged:
            count = mx.array(counts, mx.int32)
            more = Frame(count, 1, WIDTH + 1).used(count, WIDTH, 3)
            found = replayed(layer, state, block, count, *more)
        else:
            found = replayed(layer, state, block, shift)
        for row, wanted in enumerate(counts):
            assert mx.array_equal(found.window[row], steps[wanted].window[row]).item()
            assert mx.array_equal(found.memory[row], steps[wanted].memory[row]).item(), wanted


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_rows_that_join_and_leave_between_rounds(targets: Any, name: str) -> None:
    """A pending block meets rows with none, and with one of another width."""
    target = targets(name)
    caches = prefilled(target, TEXTS[0], 5)  # ends with a chunk of one token: nothing pending
    lengths, texts = [5], [0]
    turn = count()

    def feed(width: int, rights: list[int]) -> None:
        block = []
        for text, length, right in zip(texts, lengths, rights, strict=True):
            true = TEXTS[text][length : length + width]
            block.append([t if at <= right else (t + 1) % 64 for at, t in enumerate(true)])
        caches.frame = Frame(mx.array(lengths, mx.int32), width, max(lengths) + width)
        mx.eval(target.hidden(mx.array(block, mx.uint32), caches.layers), caches.state)
        lengths[:] = [length + right + 1 for length, right in zip(lengths, rights, strict=True)]
        next(turn)

    feed(4, [2])  # a block of four is pending
    caches.append(prefilled(target, TEXTS[1], 9), 0)  # before the other, nothing pending
    lengths.insert(0, 9)
    texts.insert(0, 1)
    feed(6, [5, 0])
    caches.append(prefilled(target, TEXTS[3], 7, chunk=7))  # seven tokens are pending
    lengths.append(7)
    texts.append(3)
    feed(3, [1, 2, 0])
    caches.gather([2, 0], 64)
    lengths[:], texts[:] = [lengths[2], lengths[0]], [texts[2], texts[0]]
    feed(5, [4, 1])
    caches.append(prefilled(target, TEXTS[2], 1))
    lengths.append(1)
    texts.append(2)
    feed(1, [0, 0, 0])
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        Fresh(target, TEXTS[text], length).check(caches, row, length, CLOSE)
    assert next(turn) == 5
    caches.gather([], 0)
    assert caches.nbytes == 0


@pytest.mark.parametrize("name", tiny.HYBRIDS)
def test_the_layer_is_mlx_lms_own(name: str) -> None:
    """Over a state cache, over mlx-lm's own and over none, in one pass: the same numbers."""
    plain = tiny.HYBRIDS[name]()
    text = mx.array([TEXTS[0][:7]], mx.uint32)
    wanted = plain(text)
    target = Target(tiny.HYBRIDS[name](), {})
    assert target.layout.windows == (None,) * 4
    assert target.layout.states == (0, 2)
    assert target.split
    assert use_state_caches(target.model) == 0  # a second time there is nothing to do
    caches = new_caches(target, **SIZES)
    caches.frame = Frame.exact(0, 7)
    for found in (
        target.model(text),
        target.model(text, target.new_native_cache()),
        target.logits(target.hidden(text, caches.layers)),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_positions_that_no_state_can_be_brought_to(targets: Any) -> None:
    target = targets("qwen3.5")
    caches = prefilled(target, TEXTS[0], 5)
    for start in (4, 6):  # nothing is pending behind 5 tokens
        caches.frame = Frame.exact(start, 2)
        with pytest.raises(ValueError, match=f"cannot be brought to {start} tokens"):
            target.hidden(mx.array([[1, 2]], mx.uint32), caches.layers)


def test_no_prefix_of_a_row_can_be_copied(targets: Any) -> None:
    target = targets("qwen3.5")
    caches = prefilled(target, TEXTS[0], 5)
    with pytest.raises(ValueError, match=r"caches \[0, 2\] keep a recurrent state"):
        RowCopy.of(caches, 0, 5, 5)
    assert "belongs to one length" in target.layout.uncut


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_bytes_that_are_booked_are_never_exceeded(targets: Any, name: str) -> None:
    target = targets(name)
    booked = position_bytes(target, **SIZES)
    heads, values, keys = 4, 8, 16
    memory = 4 * heads * values * keys
    window = 4 * 3 * (2 * 2 * keys + heads * values)
    assert [most for _, most in booked] == [1, None, 1, None]
    assert booked[0][0] > 2 * (memory + window)
    caches = prefilled(target, TEXTS[0], 5)
    caches.frame = Frame(mx.array([5], mx.int32), SLACK, 5 + SLACK)
    block = mx.array([TEXTS[0][5 : 5 + SLACK]], mx.uint32)
    mx.eval(target.hidden(block, caches.layers), caches.state)
    layer = caches.layers[0]
    assert memory + window < layer.nbytes < booked[0][0] - memory - window
    assert layer.nbytes + memory + window > 0.7 * booked[0][0]


def test_settings_of_the_widest_block_fit() -> None:
    """A model of one token at a time is booked without any block."""
    target = Target(tiny.qwen35_model(), {})
    narrow = position_bytes(target, slack=1, length_step=16)
    wide = position_bytes(target, slack=Settings().max_width, length_step=16)
    assert narrow[0][0] < wide[0][0]
    assert narrow[1] == wide[1]


def operations(caches: SlotCache, states: mx.array) -> int:
    """MLX operations of a pass that has not been evaluated."""
    graph = io.StringIO()
    mx.export_to_dot(graph, states, *caches.state)
    return graph.getvalue().count("shape=rectangle")


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_what_a_replay_adds_to_a_pass(targets: Any, name: str) -> None:
    """A loop over the block's tokens where MLX has no kernel, and little beside it."""
    target, layers = targets(name), 2
    counted = {}
    for width in (4, 8):
        caches = prefilled(target, TEXTS[0], 5)  # nothing pending
        for pending in (False, True):
            caches.frame = Frame(mx.array([5 + pending], mx.int32), width, 5 + pending + width)
            mx.eval(caches.frame.offset)
            block = mx.array([TEXTS[0][:width]], mx.uint32)
            mx.eval(block)
            states = target.hidden(block, caches.layers)
            counted[width, pending] = operations(caches, states)
            mx.eval(states, caches.state)
    added = {
        width: (counted[width, True] - counted[width, False]) / layers for width in (4, 8)
    }
    per_token = (added[8] - added[4]) / 4
    assert per_token <= PER_TOKEN
    assert added[4] - 4 * per_token <= BESIDE
