"""The whole command on a product that was made slower; minutes, so run by hand: make test-slow.

Each test makes a baseline of a part of the suite in a folder of its own and compares with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import baseline_store as store

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def command(action: str, folder: Path, only: str, mutation: str = "") -> tuple[int, str]:
    """Exit status and output of ``python -m benchmarks.regress``."""
    words = [sys.executable, "-m", "benchmarks.regress", action, "--only", only]
    words += ["--folder", str(folder)]
    words += ["--accept-unsteady"] if action == "baseline" else []
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    if mutation:
        environ["PYTEST_ADDOPTS"] = f"-p tests.bench.mutations.{mutation}"
    done = subprocess.run(
        words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(store.FOLDER / store.COUNTERS, tmp_path)
    return tmp_path


def test_settle_slower_by_a_tenth_fails(folder: Path) -> None:
    assert command("baseline", folder, "test_settle[")[0] == 0
    status, out = command("compare", folder, "test_settle[")
    assert status == 0, "unchanged code must pass"
    status, out = command("compare", folder, "test_settle[", "slow_settle")
    assert status == 1
    slower = [line for line in out.splitlines() if line.startswith("REGRESSED")]
    assert len(slower) >= 3, "five sizes are timed"


def test_one_more_host_sync_per_round_fails(folder: Path) -> None:
    assert command("baseline", folder, "test_counters")[0] == 0
    assert command("compare", folder, "test_counters")[0] == 0
    status, out = command("compare", folder, "test_counters", "extra_sync")
    assert status == 1
    for case in ("classic", "draft model, width 4"):
        assert f"ROSE       {case}: reads: 8 -> 16" in out
