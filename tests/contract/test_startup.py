"""Importing mlxcel and asking for help stay cheap and load no MLX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlxcel

ENVIRON = os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}
HEAVY = ("mlx.core", "mlx_lm", "numpy", "transformers", "rich")


def run(*words: str) -> str:
    """Output of this interpreter with these arguments."""
    done = subprocess.run(
        [sys.executable, *words], env=ENVIRON, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def best_seconds(code: str, runs: int = 5) -> float:
    """Least processor time of several whole runs of the interpreter."""
    times = []
    for _ in range(runs):
        began = os.times()
        run("-c", code)
        ended = os.times()
        user = ended.children_user - began.children_user
        times.append(user + ended.children_system - began.children_system)
    return min(times)


@pytest.mark.parametrize(
    "code",
    [
        "import mlxcel",
        "import mlxcel.config, mlxcel.hardware.blas, mlxcel.hardware.memory",
        "import mlxcel.cli",
        "from mlxcel import EngineClient",
        "import mlxcel.remote.child, mlxcel.remote.supervisor",
    ],
)
def test_loads_nothing_heavy(code: str) -> None:
    assert run("-c", f"import sys; {code}; print([m for m in {HEAVY} if m in sys.modules])") == (
        "[]\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["info", "--help"], ["bench", "width", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import atexit, sys;"
        f"atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules]));"
        f"from mlxcel.cli import main; main({words})"
    )
    assert run("-c", code).endswith("[]\n")


def test_import_is_quick() -> None:
    # Best of five, against the bare interpreter: other load on the machine drops out.
    assert best_seconds("import mlxcel") - best_seconds("pass") < 0.3


def test_module_runs_as_command() -> None:
    assert mlxcel.__version__ in run("-m", "mlxcel", "--version")
