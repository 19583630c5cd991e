"""One benchmark at a time: refused with the holder's name, free again however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mlxcel
from mlxcel.bench.host_lock import benchmark_lock, lock_path
from mlxcel.errors import CapacityError, ConfigError

HOLDER = """
import sys, time
from pathlib import Path
from mlxcel.bench.host_lock import benchmark_lock
with benchmark_lock(Path(sys.argv[1]), now=lambda: "2026-11-30T21:05:00+00:00"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process of its own that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_benchmark_is_refused_and_told_who_holds_it(tmp_path, holder):
    with (
        pytest.raises(CapacityError, match=f"process {holder.pid}, since 2026-11-30T21:05:00"),
        benchmark_lock(tmp_path),
    ):
        pass


def test_a_kill_frees_it(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with benchmark_lock(tmp_path) as path:
        assert str(os.getpid()) in path.read_text()


def test_it_is_free_after_the_block_and_after_an_error(tmp_path):
    with benchmark_lock(tmp_path / "new" / "folder"):
        pass
    with pytest.raises(RuntimeError), benchmark_lock(tmp_path):
        raise RuntimeError
    with benchmark_lock(tmp_path) as path:
        assert path == lock_path(tmp_path)
    assert path.read_text() == ""


def test_within_one_process_it_is_one_too(tmp_path):
    with (
        benchmark_lock(tmp_path),
        pytest.raises(CapacityError, match=f"process {os.getpid()}, since 20"),
        benchmark_lock(tmp_path),
    ):
        pass


def test_a_holder_that_has_not_written_its_name(tmp_path):
    with benchmark_lock(tmp_path) as path:
        path.write_text("")
        with pytest.raises(CapacityError, match="has not said yet"), benchmark_lock(tmp_path):
            pass


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot be locked: .*MLXCEL_CACHE_DIR"),
        benchmark_lock(tmp_path / "file"),
    ):
        pass
