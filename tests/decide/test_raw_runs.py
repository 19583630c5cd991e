"""Raw samples and provenance: what cannot be is refused, with its place."""

from __future__ import annotations

import dataclasses

import pytest

from mlxcel.decide.provenance import ExactnessNote, KernelNote, Provenance
from mlxcel.decide.raw_runs import RawRow
from mlxcel.errors import LoadError
from tests.decide.raw import PASSED, classic, raw_row, speculative


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": 0.0}, "must be positive"),
        ({"seconds": float("nan")}, "must be positive"),
        ({"tokens": 15}, "do not fit 16 rounds"),
        ({"tokens": 65}, "do not fit 16 rounds of 1 to 4"),
        ({"width_min": 5}, "width_min 5 is above width_max 4"),
        ({"proposed": 49}, "do not fit 16 rounds of width 4"),
        ({"accepted": 49}, "accepted 49 of proposed 48"),
        ({"accepted_by_position": (14, 8, 1)}, "adds up to 23, not to accepted 24"),
        ({"ids_sha256": "abc"}, "no SHA-256"),
        ({"arm": "classic"}, "a classic run has rounds of width 1"),
    ],
)
def test_a_run_that_cannot_be(changes, reason):
    with pytest.raises(LoadError, match=reason):
        speculative(20.0, 0.0, **changes)


def test_arms_in_another_order_are_refused():
    raw = raw_row()
    a, b, c, d = raw.pairs[1]
    with pytest.raises(LoadError, match=r"pairs\[1\] must run classic, speculative"):
        RawRow((raw.pairs[0], (b, a, c, d)), raw.null)
    with pytest.raises(LoadError, match="at least one block"):
        RawRow((), raw.null)
    with pytest.raises(LoadError, match="two classic runs"):
        RawRow(raw.pairs, (raw.null[0],))


def test_runs_that_overlap_are_refused():
    raw = raw_row()
    late = dataclasses.replace(raw.null[1], started_s=raw.pairs[2][3].started_s + 1)
    with pytest.raises(LoadError, match="overlaps"):
        RawRow(raw.pairs, (raw.null[0], late))


def test_the_arms_of_a_row():
    raw = raw_row([(10, 20, 21, 11), (12, 22, 23, 13)], (9, 14))
    assert [round(run.speed) for run in raw.of("classic")] == [10, 11, 12, 13]
    assert [round(run.speed) for run in raw.of("speculative")] == [20, 21, 22, 23]
    assert [round(run.speed) for run in raw.classic()] == [9, 10, 11, 12, 13, 14]
    assert classic(10.0, 0.0).speed == 10.0


GOOD = {
    "memory_bytes": 2**34, "system": "Linux", "python": "3.11", "versions": (("mlx", "1"),),
    "commit": "a" * 40, "dirty": False, "command": ("mlxcel", "bench"),
    "environment": (("OMP_NUM_THREADS", "2"),), "blas": "OpenBLAS",
    "kernel": KernelNote("dense float32", "wide"), "exactness": ExactnessNote("bitwise", "equal"),
    "started": "2026-11-30T21:05:00Z", "seconds": 12.5, "guards": PASSED, "round_loop": 1,
    "cost_only": False,
}  # fmt: skip


def test_the_day_of_a_provenance():
    assert Provenance(**GOOD).day == "2026-11-30"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dirty": None}, "given together"),
        ({"commit": "abc"}, "40 hexadecimal digits"),
        ({"environment": (("HF_TOKEN", "x"),)}, "HF_TOKEN does not belong into a record"),
        ({"started": "2026-11-30"}, "must be UTC"),
        ({"guards": {"quiet": {}}}, "guards: contention is missing"),
    ],
)
def test_a_provenance_that_cannot_be(changes, reason):
    with pytest.raises(LoadError, match=reason):
        Provenance(**GOOD | changes)
