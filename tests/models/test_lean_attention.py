"""Attention of plain operations: the library's numbers, row by row the same bits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from mlxcel.models.lean import lean_modules
from mlxcel.models.lean_attention import BLOCK, LeanAttention, MaskTables, attend, exponential
from tests.support import tiny

SCALE = 0.125


def inputs(rows, heads, kv_heads, width, columns, dim=16):
    keys = iter(mx.random.split(mx.random.key(7), 3))
    return (
        mx.random.normal((rows, heads, width, dim), key=next(keys)) * 3,
        mx.random.normal((rows, kv_heads, columns, dim), key=next(keys)) * 3,
        mx.random.normal((rows, kv_heads, columns, dim), key=next(keys)),
    )


def visible(rows, width, columns):
    """Each row has its own length; the columns behind it are hidden."""
    query = mx.arange(rows)[:, None, None, None] + columns // 2 + mx.arange(width)[:, None]
    return mx.arange(columns) <= query


def test_exponential_is_that_of_double_precision():
    x = np.concatenate([-np.geomspace(1e-7, 86, 4000), [0.0]]).astype(np.float32)
    found = np.array(exponential(mx.array(x)), dtype=np.float64)
    wanted = np.exp(x.astype(np.float64))
    theirs = np.abs(np.array(mx.exp(mx.array(x)), dtype=np.float64) / wanted - 1).max()
    assert np.abs(found / wanted - 1).max() < max(theirs, 1e-6) + 2e-7
    assert found[-1] == 1.0


def test_exponential_of_what_is_hidden_is_zero_and_of_nothing_else_wrong():
    edge = np.array([-88.1, -89.0, -1e4, -1e30, -3.4e38, -np.inf], dtype=np.float32)
    assert np.array(exponential(mx.array(edge))).tolist() == [0.0] * len(edge)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (9, 3)])
@pytest.mark.parametrize("width", [1, 2, 5, 16, 40])
@pytest.mark.parametrize("masked", ["none", "causal", "array", "additive"])
def test_equals_the_library(heads, width, masked):
    queries, keys, values = inputs(3, *heads, width, 70)
    mask = None
    if masked == "causal":
        mask = "causal"
    elif masked != "none":
        mask = visible(3, width, 70)
    if masked == "additive":
        mask = mx.where(mask, 0.0, -1e9)
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)
    found = attend(queries, keys, values, scale=SCALE, mask=mask)
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=2e-5, rtol=0)


@pytest.mark.parametrize("width", [BLOCK, BLOCK + 1, 3 * BLOCK - 5])
@pytest.mark.parametrize("before", [0, 30])
def test_a_chunk_in_blocks_of_queries(width, before):
    queries, keys, values = inputs(1, 6, 2, width, before + width)
    wanted = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=SCALE, mask="causal"
    )
    found = attend(queries, keys, values, scale=SCALE, mask="causal")
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=2e-5, rtol=0)


def test_a_row_is_the_same_whatever_is_beside_it():
    """Bit for bit: alone and exact, or among others in a longer buffer behind a mask."""
    queries, keys, values = inputs(5, 9, 3, 4, 96, dim=64)
    mask = visible(5, 4, 96)
    together = np.array(attend(queries, keys, values, scale=SCALE, mask=mask))
    for row in range(5):
        for step in range(4):
            length = row + 48 + step + 1
            alone = attend(
                queries[row : row + 1, :, step : step + 1], keys[row : row + 1, :, :length],
                values[row : row + 1, :, :length], scale=SCALE, mask=None,
            )  # fmt: skip
            np.testing.assert_array_equal(np.array(alone)[0, :, 0], together[row, :, step])


def test_tables_are_made_once_for_all_layers_of_a_pass():
    tables, mask = MaskTables(), visible(2, 3, 20)
    first = tables.of(mask, 3, 20)
    assert tables.of(mask, 3, 20) is first
    assert tables.of(visible(2, 3, 20), 3, 20) is not first
    causal = tables.of("causal", 3, 20)
    assert tables.of("causal", 3, 20) is causal
    assert tables.of("causal", 3, 21) is not causal
    assert tables.of("causal", 1, 20) is None
    with pytest.raises(ValueError, match="sideways"):
        tables.of("sideways", 3, 20)


@pytest.mark.parametrize("make", [tiny.llama_model, tiny.qwen2_model, tiny.qwen3_model])
def test_replaces_attention_of_float32_only(make):
    model = make()
    lean_modules(model)
    assert all(type(layer.self_attn) is LeanAttention for layer in model.layers)
    half = tiny.llama_model()
    half.set_dtype(mx.float16)
    lean_modules(half)
    assert all(type(layer.self_attn) is llama.Attention for layer in half.layers)
