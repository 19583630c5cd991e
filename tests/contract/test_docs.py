"""Generated pages are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlxcel

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"],
        env={"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
