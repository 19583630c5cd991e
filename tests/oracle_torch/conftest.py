"""The cases, made once per session in the environment that has torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracle_torch.assistants import Pair, loader
from tests.support.checkpoints import TEMPLATE, vocabulary, write_tokenizer

HERE = Path(__file__).parent
PYTHON = os.environ.get("ORACLE_PYTHON", str(HERE.parents[1] / ".oracle" / "bin" / "python"))


@pytest.fixture(scope="session")
def oracle_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one pairing per family, and what transformers made of each."""
    return _made(tmp_path_factory, "make_cases.py")


@pytest.fixture(scope="session")
def pair(oracle_cases: Path) -> Callable[[str], Pair]:
    """Loads a family of Gemma 4."""
    return loader(oracle_cases)


@pytest.fixture(scope="session")
def qwen_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of Qwen's targets, whose head lies inside."""
    return _made(tmp_path_factory, "make_qwen.py")


@pytest.fixture(scope="session")
def eagle_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of llamas with EAGLE heads."""
    return _made(tmp_path_factory, "make_eagle.py")


def _made(tmp_path_factory: pytest.TempPathFactory, script: str) -> Path:
    if not Path(PYTHON).exists():
        assert "ORACLE_PYTHON" not in os.environ, f"ORACLE_PYTHON: no such file: {PYTHON}"
        pytest.skip("torch")
    folder = tmp_path_factory.mktemp("oracle")
    # Only the libraries of its own environment.
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [PYTHON, str(HERE / script), str(folder)],
        capture_output=True, text=True, env=environ | {"HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for name in done.stdout.split():
        write_tokenizer(folder / name / "target", vocabulary(), TEMPLATE)
    return folder
