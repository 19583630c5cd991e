"""Kernels of a step as a GPU would run them: counted right, and not more than committed."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from benchmarks import primitives_per_step as counted
from benchmarks.gpu_graph import GpuGraph, launches

LAYERS = 2
# Kernels of each layer: see docs/decisions/0022.
MLX_LM, CLASSIC, BLOCK = 17, 13, 14


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def _per_layer(counts: dict[int, int]) -> int:
    return counts[LAYERS + 1] - counts[LAYERS]


def _both(count: object) -> dict[int, int]:
    return {layers: count(counted.demo_like(layers)) for layers in (LAYERS, LAYERS + 1)}  # type: ignore[operator]


def test_a_layer_costs_the_kernels_that_are_written_down() -> None:
    mlx_lm = _both(lambda model: launches(counted.count_mlx_lm(model)["step"]))
    classic = _both(lambda model: launches(counted.count_engine(model, 1)["step"]))
    block = _both(lambda model: launches(counted.count_engine(model, 4)["verify"]))
    assert (_per_layer(mlx_lm), _per_layer(classic), _per_layer(block)) == (MLX_LM, CLASSIC, BLOCK)
    assert classic[LAYERS] - LAYERS * CLASSIC <= 10
    assert block[LAYERS] - LAYERS * BLOCK <= 27


def test_a_round_has_all_its_parts_and_is_the_same_each_time() -> None:
    first = counted.count_engine(counted.demo_like(LAYERS), 4)
    assert first.keys() == {"draft", "verify", "absorb"}
    assert first == counted.count_engine(counted.demo_like(LAYERS), 4)
    assert launches(first["draft"]) <= 77
    assert launches(first["absorb"]) <= 29


def test_a_classic_step_calls_fewer_functions_than_mlx_lm_per_layer() -> None:
    ours = _both(lambda model: counted.calls_of_engine(model, 1))
    its = _both(counted.calls_of_mlx_lm)
    assert _per_layer(ours) < _per_layer(its)


def test_the_stand_ins_are_taken_off_again() -> None:
    x = mx.ones((1, 4))
    with GpuGraph() as graph:
        counts = graph.count(mx.fast.rms_norm(x, mx.ones(4), 1e-5) + 1)
    assert counts["RMSNorm"] == 1
    assert counts["Add"] == 1
    assert mx.allclose(mx.fast.rms_norm(x, mx.ones(4), 1e-5), x, atol=1e-4)


def test_an_array_mask_of_bool_costs_three_kernels_and_views_nothing() -> None:
    q, mask = mx.ones((1, 2, 3, 8)), mx.ones((1, 1, 3, 3), mx.bool_)
    with GpuGraph() as graph:
        attention = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask=mask)
        assert launches(graph.count(attention)) >= 4
        graph.take()
        assert launches(graph.count(mx.arcsinh(mx.ones((2, 3))).T.reshape(6), 1)) == \
            launches(graph.count(mx.arcsinh(mx.ones((2, 3))), 1))
