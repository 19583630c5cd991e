"""The kernel profile that all tests go by unless they are marked: what it says, and who sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import mlxcel
from mlxcel.config import Settings
from mlxcel.engine.served_form import kernel_verdict, pass_rule
from mlxcel.hardware import kernels
from mlxcel.runtime import kernel_profile
from mlxcel.runtime.loader import load_checkpoint
from tests.support.checkpoints import write_tiny_llama
from tests.support.fixed_profile import fixed_times, keep_profile, measure_kernels


def test_it_is_that_of_a_quiet_cpu(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", bits=4)
    model, settings = load_checkpoint(folder, cache_dir=tmp_path), Settings(cache_dir=tmp_path)
    verdict = kernel_verdict(model, settings)
    assert (verdict.serve, verdict.wide("stored"), verdict.wide("dense")) == ("dense", False, True)
    assert not any(found.padded for found in verdict.forms.values())
    rule = pass_rule(model, settings)
    assert all(rule.tokens(1, width) == width for width in range(1, 17))


FINDS = """
import sys; from pathlib import Path
from mlxcel.runtime.kernel_profile import kernel_times, shapes_of
folder, cache = map(Path, sys.argv[1:])
times, cached = kernel_times(*shapes_of(folder, cache_dir=cache), cache_dir=cache)
print(cached, times.samples["mlp", "dense", 4])
"""


def test_another_process_finds_what_was_kept_for_it(tmp_path: Path) -> None:
    folder, cache = write_tiny_llama(tmp_path / "tiny"), tmp_path / "cache"
    keep_profile(folder, cache)
    done = subprocess.run(
        [sys.executable, "-c", FINDS, str(folder), str(cache)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}, timeout=300,
    )  # fmt: skip
    mlp = kernel_profile.shapes_of(folder, cache_dir=cache)[0]
    wanted = fixed_times(mlp, mx.float32).samples["mlp", "dense", 4]
    assert done.stdout == f"True {wanted}\n", done.stderr


@pytest.mark.measured
def test_marked_tests_measure() -> None:
    assert kernel_profile.measure_kernels is measure_kernels
    assert measure_kernels.__module__ == kernels.__name__


def test_others_do_not(tmp_path: Path) -> None:
    assert kernel_profile.measure_kernels is fixed_times
    assert Settings().cache_dir == Settings.from_env().cache_dir != Path.home() / ".cache/mlxcel"
