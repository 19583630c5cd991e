"""docs/benchmarks.md is what the evidence gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlxcel
from mlxcel.evidence import load_records

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def test_the_page_is_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_benchmarks.py"), "--check"],
        env={"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_record_is_on_the_page_and_published_ones_stand_apart():
    text = PAGE.read_text(encoding="utf-8")
    here = text.index("\n## Measured here\n")
    elsewhere = text.index("\n## Published elsewhere\n")
    assert here < elsewhere
    for record in load_records():
        assert f"`{record.id}`" in text
        if record.rows and record.origin == "published":
            assert f"`{record.id}`" not in text[here:elsewhere]
