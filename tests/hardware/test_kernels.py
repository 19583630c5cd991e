"""Kernel profile: measuring with a given clock, and the cache of what was measured."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.hardware import kernels, profile_store
from mlxcel.hardware.host import Host, describe
from mlxcel.hardware.kernels import ROWS, KernelTimes, Projection, measure_kernels
from mlxcel.hardware.profile_store import ProfileStore, digest, host_facts
from mlxcel.runtime import kernel_profile
from mlxcel.runtime.kernel_profile import kernel_times, projections_of, shapes_of
from mlxcel.runtime.loader import load_checkpoint
from tests.support import tiny
from tests.support.checkpoints import write_tiny_llama

SMALL = Projection(
    name="mlp", inputs=64, outputs=96, bits=4, group_size=32, mode="affine", count=3.0
)
HEAD = Projection(name="head", inputs=64, outputs=8192, bits=8, group_size=32, mode="affine")


class Clock:
    """Every reading is later by the same amount."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def cells(times: KernelTimes) -> set[tuple[str, str, int]]:
    return set(times.samples)


def test_what_compiles_is_not_among_the_samples() -> None:
    """Every shape's first evaluation takes a second here, the others 10 ms."""
    now, seen = [0.0], set()
    plain = kernels._Products.runner

    def runner(self: kernels._Products, rows: int) -> Callable[[int, int], None]:
        def run(calls: int, outputs: int) -> None:
            shape = (id(self), rows, calls, outputs)
            now[0] += 0.01 if shape in seen else 1.0
            seen.add(shape)

        return run

    kernels._Products.runner = runner  # type: ignore[method-assign]
    try:
        made = [
            measure_kernels([SMALL], mx.float32, clock=lambda: now[0], budget=2.0, compiles=each)
            for each in (True, False)
        ]
    finally:
        kernels._Products.runner = plain  # type: ignore[method-assign]
    good, bad = (max(max(samples) for samples in times.samples.values()) for times in made)
    assert good == pytest.approx(0.01)
    assert bad >= 1.0
    assert all(len(samples) > 1 for samples in made[0].samples.values())


def test_every_cell_is_timed_once_whatever_the_budget() -> None:
    times = measure_kernels([SMALL, HEAD], mx.float32, clock=Clock(1.0), budget=0.0)
    assert cells(times) == {(n, f, r) for n in ("mlp", "head") for f in ("stored", "dense")
                            for r in ROWS}  # fmt: skip
    assert {len(samples) for samples in times.samples.values()} == {1}
    assert times.skipped == {}


def test_repeats_follow_the_budget_and_end() -> None:
    few = measure_kernels([SMALL], mx.float32, clock=Clock(0.01), budget=0.6)
    many = measure_kernels([SMALL], mx.float32, clock=Clock(0.01), budget=60.0)
    counts = [len(samples) for samples in few.samples.values()]
    assert max(counts) - min(counts) <= 1  # they take turns
    assert 1 < max(counts) < kernels.MAX_REPEATS
    assert {len(samples) for samples in many.samples.values()} == {kernels.MAX_REPEATS}


def test_short_products_are_timed_by_the_dozen() -> None:
    times = measure_kernels([SMALL], mx.float32, rows=(1, 4), clock=Clock(1e-4), budget=0.0)
    assert all(samples[0] < 1e-4 / 10 for samples in times.samples.values())


def test_a_dear_product_is_timed_on_a_part_of_its_outputs() -> None:
    """Readings are 1 s apart, so a part of 1/n counts n seconds."""
    times = measure_kernels([HEAD], mx.float32, rows=(1, 4), clock=Clock(1.0), budget=0.0)
    assert times.table()["head", "stored"] == {1: 1.0, 4: 2.0}  # 4096 of 8192 outputs


def test_the_median_leaves_one_outlier_out() -> None:
    samples = {("mlp", "dense", 1): (1.0, 9.0, 1.1), ("mlp", "dense", 4): (7.0, 2.0)}
    times = KernelTimes(projections=(SMALL,), dtype="float32", samples=samples)
    assert times.table() == {("mlp", "dense"): {1: 1.1, 4: 2.0}}
    assert times.counts == {"mlp": 3.0}


def test_a_form_without_room_is_left_out_and_said_so() -> None:
    big = replace(HEAD, outputs=1 << 22)
    assert big.nbytes("dense", 4) == 1 << 30
    times = measure_kernels([SMALL, big], mx.float32, rows=(1,), clock=Clock(1.0), free=600 << 20)
    assert cells(times) == {("mlp", "stored", 1), ("mlp", "dense", 1), ("head", "stored", 1)}
    assert "1280 MiB needed" in times.skipped["head", "dense"]


@pytest.mark.parametrize("mode", [("affine", 8, 64), ("mxfp4", 4, 32), ("nvfp4", 4, 16)])
def test_all_quantizations_can_be_timed(mode: tuple[str, int, int]) -> None:
    name, bits, group = mode
    shape = replace(SMALL, bits=bits, group_size=group, mode=name)
    times = measure_kernels([shape], mx.float32, rows=(1, 4), clock=Clock(1.0), budget=0.0)
    assert ("mlp", "stored", 4) in times.samples


def test_a_real_run_is_positive_and_short() -> None:
    times = measure_kernels([SMALL, HEAD], mx.float32, budget=0.5)
    assert 0 < times.seconds < 60
    assert all(min(samples) > 0 for samples in times.samples.values())


# -- shapes --------------------------------------------------------------------------


def test_shapes_come_from_the_model() -> None:
    mlp, head = projections_of(tiny.llama_model(), {})
    assert (mlp.name, {mlp.inputs, mlp.outputs}, mlp.bits) == ("mlp", {32, 64}, 0)
    assert (head.name, head.inputs, head.outputs) == ("head", 32, tiny.VOCAB)
    assert mlp.forms == ("dense",)
    whole = 2 * (3 * 32 * 64 + 32 * (32 + 16 + 16 + 32))
    assert mlp.count == pytest.approx(whole / (32 * 64), abs=1e-3)


@pytest.mark.parametrize("weights", ["stored", "dense"])
def test_the_quantization_is_known_in_every_form_served(tmp_path: Path, weights: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", bits=4)
    shapes, dtype = shapes_of(folder, cache_dir=tmp_path)
    assert dtype == mx.float32
    assert {(s.bits, s.group_size, s.mode) for s in shapes} == {(4, 32, "affine")}
    model = load_checkpoint(folder, cache_dir=tmp_path, weights=weights)
    assert projections_of(model.target.model, model.target.config) == shapes


# -- the cache -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Host:
    return describe()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring takes no time; how often it is done is counted."""
    runs: list[int] = []

    def measure(projections: Any, dtype: mx.Dtype, **options: Any) -> KernelTimes:
        runs.append(1)
        samples = {(p.name, f, r): (r * 1e-3,) for p in projections for f in p.forms for r in ROWS}
        return KernelTimes(
            projections=tuple(projections), dtype="float32", samples=samples, seconds=1.0
        )

    monkeypatch.setattr(kernel_profile, "measure_kernels", measure)
    return runs


def kept(folder: Path) -> Path:
    (path,) = (folder / "kernels").iterdir()
    return path


def test_a_profile_is_measured_once(tmp_path: Path, host: Host, measured: list[int]) -> None:
    first, cached = kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    again, from_cache = kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    assert (cached, from_cache, len(measured)) == (False, True, 1)
    assert again == first
    kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host, refresh=True)
    assert len(measured) == 2


def test_everything_that_changes_a_time_is_in_the_key(
    tmp_path: Path, host: Host, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        (SMALL, mx.float16, host),
        (replace(SMALL, outputs=97), mx.float32, host),
        (replace(SMALL, bits=8), mx.float32, host),
        (replace(SMALL, group_size=64), mx.float32, host),
        (SMALL, mx.float32, replace(host, chip="another")),
        (SMALL, mx.float32, replace(host, cores=host.cores + 1)),
        (SMALL, mx.float32, replace(host, backend="cuda")),
        (SMALL, mx.float32, replace(host, versions={**host.versions, "mlx": "9"})),
        (SMALL, mx.float32, replace(host, versions={**host.versions, "mlxcel": "9"})),
        (SMALL, mx.float32, replace(host, blas=replace(host.blas, name="another"))),
    ]
    kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    for count, (shape, dtype, where) in enumerate(others, 2):
        kernel_times([shape], dtype, cache_dir=tmp_path, host=where)
        assert len(measured) == count
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    assert len(measured) == len(others) + 2


def damage_record(path: Path, change: Any) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("{}"),
        lambda path: damage_record(path, lambda f: f.update(version=0)),
        lambda path: damage_record(path, lambda f: f["key"].update(dtype="int8")),
        lambda path: damage_record(path, lambda f: f["record"].pop("cells")),
        lambda path: damage_record(path, lambda f: f["record"]["cells"].pop()),
        lambda path: damage_record(path, lambda f: f["record"]["cells"][0].update(samples=[])),
        lambda path: damage_record(path, lambda f: f["record"]["cells"][0].update(samples=[0])),
        lambda path: damage_record(path, lambda f: f["record"]["cells"][0].update(samples=["x"])),
        lambda path: damage_record(path, lambda f: f["record"].update(cells=7)),
    ],
)
def test_a_damaged_or_old_file_is_measured_again_and_replaced(
    tmp_path: Path, host: Host, measured: list[int], damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    path = kept(tmp_path)
    damage(path)
    with caplog.at_level(logging.INFO, "mlxcel"):
        again, cached = kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    assert (cached, again) == (False, first)
    assert "measuring again" in caplog.text
    assert kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)[1]
    assert kept(tmp_path) == path  # nothing temporary is left


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, host: Host, measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kernels").write_text("a file in the folder's place")
    times, cached = kernel_times([SMALL], mx.float32, cache_dir=tmp_path, host=host)
    assert not cached
    assert times.samples
    assert "cannot be written" in caplog.text


def test_a_failed_write_leaves_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProfileStore(tmp_path, 1)
    store.write({"a": 1}, {"value": 1})

    def full(number: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(profile_store.os, "fsync", full)
    assert store.write({"a": 1}, {"value": 2}) is None
    assert store.read({"a": 1}) == {"value": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_keys_and_facts_are_stable(host: Host) -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})
    facts = host_facts(host, {"OMP_NUM_THREADS": "2", "HOME": "elsewhere"})
    assert facts["environment"] == "OMP_NUM_THREADS=2"
    assert facts == json.loads(json.dumps(facts))
