"""Decisions from kernel profiles: simulated hosts, noise, and the Apple table beside them."""

from __future__ import annotations

import json
import random

import pytest

from mlxcel.decide.chips import identify
from mlxcel.decide.kernels import WIDE_LIMIT, decide_kernels, disagreement
from mlxcel.errors import ConfigError

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
COUNTS = {"mlp": 120.0, "head": 1.0}
# Microseconds on an H200, 5376 x 21504 and 5376 x 262144 (../shared/platform.md).
CUDA_MLP = dict(zip(ROWS, (87, 153, 218, 286, 409, 71, 72, 75), strict=True))
CUDA_HEAD = dict(zip(ROWS, (800, 1564, 2327, 3070, 4582, 608, 616, 614), strict=True))
CUDA_DENSE = dict(zip(ROWS, (80, 88, 96, 104, 100, 95, 95, 94), strict=True))
CUDA_DENSE_HEAD = dict(zip(ROWS, (641, 673, 676, 679, 679, 679, 680, 682), strict=True))


def line(first: float, per_row: float) -> dict[int, float]:
    return {rows: first + per_row * (rows - 1) for rows in ROWS}


def both(stored: dict[int, float], dense: dict[int, float]) -> dict:
    return {
        ("mlp", "stored"): stored,
        ("head", "stored"): {rows: 30 * value for rows, value in stored.items()},
        ("mlp", "dense"): dense,
        ("head", "dense"): {rows: 30 * value for rows, value in dense.items()},
    }


CPU = both(line(1.1, 1.0), line(0.45, 0.01))
CUDA = {
    ("mlp", "stored"): CUDA_MLP,
    ("head", "stored"): CUDA_HEAD,
    ("mlp", "dense"): CUDA_DENSE,
    ("head", "dense"): CUDA_DENSE_HEAD,
}


def test_a_cpu_is_narrow_as_stored_and_wide_dense_and_serves_dense() -> None:
    verdict = decide_kernels(CPU, COUNTS)
    assert verdict.wide("stored") is False
    assert verdict.wide("dense") is True
    assert verdict.forms["stored"].ratio == pytest.approx(4.1 / 1.1)
    assert verdict.serve == "dense"
    assert verdict.wide() is True
    assert not verdict.forms["stored"].padded
    assert verdict.forms["stored"].kernel == "narrow"
    assert "dense is wide: 4 rows cost 1.07 times one row" in verdict.reason
    assert "stored is narrow" in verdict.reason


def test_cuda_pads_two_to_seven_rows_of_the_stored_form_to_eight() -> None:
    verdict = decide_kernels(CUDA, COUNTS)
    assert [verdict.padded_rows(width, "stored") for width in range(2, 10)] == [8] * 7 + [9]
    assert [verdict.padded_rows(width, "stored") for width in (12, 13, 16)] == [12, 13, 16]
    assert [verdict.padded_rows(width, "dense") for width in range(2, 17)] == list(range(2, 17))
    stored = verdict.forms["stored"]
    assert stored.wide
    assert stored.unpadded_ratio > 3
    assert stored.ratio < 1
    assert stored.kernel == "wide-padded"
    assert "2 to 7 rows run as 8" in verdict.reason
    assert verdict.serve == "stored"  # 87 and 71 against 80 and 104


def test_a_width_between_measured_ones_never_counts_on_the_cheaper_kernel() -> None:
    """Nobody timed 7 rows: the dear kernel may reach up to there."""
    stored = decide_kernels(CUDA, COUNTS).forms["stored"]
    assert stored.padding[7] == 8
    assert stored.cost(7) == stored.seconds[8]


def test_the_limit_is_exclusive_and_applies_to_four_rows() -> None:
    for cost, wide in ((1.59, True), (WIDE_LIMIT, False), (1.61, False)):
        table = {1: 1.0, 2: 1.2, 3: 1.4, 4: cost, 8: 20.0}
        verdict = decide_kernels({("mlp", "dense"): table}, {"mlp": 1.0})
        assert verdict.wide() is wide


def test_the_form_to_serve_depends_on_the_mix() -> None:
    times = both(line(1.0, 1.0), line(1.6, 0.0))
    assert decide_kernels(times, COUNTS, verify_share=0.0).serve == "stored"
    assert decide_kernels(times, COUNTS, verify_share=1.0).serve == "dense"


def test_about_equal_times_serve_the_smaller_form() -> None:
    verdict = decide_kernels(both(line(1.0, 0.1), line(0.97, 0.1)), COUNTS)
    assert verdict.serve == "stored"
    assert "smaller than dense" in verdict.reason


@pytest.mark.parametrize("seed", range(20))
def test_ten_percent_of_noise_changes_no_answer(seed: int) -> None:
    draw = random.Random(seed)

    def noisy(times: dict) -> dict:
        return {
            key: {rows: value * draw.uniform(0.95, 1.05) for rows, value in table.items()}
            for key, table in times.items()
        }

    cpu = decide_kernels(noisy(CPU), COUNTS)
    assert (cpu.serve, cpu.wide("stored"), cpu.wide("dense")) == ("dense", False, True)
    assert not cpu.forms["dense"].padded
    assert not cpu.forms["stored"].padded
    cuda = decide_kernels(noisy(CUDA), COUNTS)
    assert cuda.padded_rows(4, "stored") == 8
    assert cuda.wide("stored") is True


def test_a_form_that_was_not_timed_everywhere_is_left_out() -> None:
    times = {key: table for key, table in CPU.items() if key != ("head", "dense")}
    verdict = decide_kernels(times, COUNTS)
    assert verdict.serve == "stored"
    assert verdict.wide("dense") is None
    assert verdict.padded_rows(5, "dense") == 5
    assert "no other form was timed" in verdict.reason


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "no form of the weights"),
        ({("mlp", "dense"): {1: 1.0, 2: 1.0}}, "not timed at 4 rows"),
        ({("mlp", "dense"): {1: 1.0, 4: 0.0}}, "mlp dense at 4 rows took 0.0 s"),
        ({("mlp", "dense"): {1: 1.0, 4: float("nan")}}, "took nan s"),
    ],
)
def test_unusable_times_are_refused(times: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decide_kernels(times, {"mlp": 1.0})


def test_the_apple_table_and_the_measurement_may_disagree() -> None:
    narrow, wide = decide_kernels(CPU, COUNTS), decide_kernels(both(*[line(1, 0.1)] * 2), COUNTS)
    ultra = identify("Apple M3 Ultra")
    assert disagreement(wide, ultra) == ""
    said = disagreement(narrow, ultra)
    assert "the table of Apple chips says wide for Apple M3 Ultra (measured" in said
    assert "stored is narrow: 4 rows cost 3.73 times one" in said
    assert "says narrow for Apple M2 (inferred" in disagreement(wide, identify("Apple M2"))
    assert disagreement(narrow, identify("Apple M9")) == ""  # the table has no answer


def test_padding_does_not_hide_a_disagreement() -> None:
    """The table speaks of the kernel, not of what padding makes of it."""
    assert "stored is narrow" in disagreement(decide_kernels(CUDA, COUNTS), identify("Apple M3"))


def test_the_verdict_is_plain_json() -> None:
    shown = json.loads(json.dumps(decide_kernels(CUDA, COUNTS).to_dict()))
    assert shown["forms"]["stored"]["padding"]["4"] == 8
    assert shown["forms"]["stored"]["kernel"] == "wide-padded"
    assert shown["serve"] == "stored"
