"""The page's pure scripts, under node: every file parses, and the units do what they say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "webapp" / "static"
UNITS = Path(__file__).with_name("page_units.test.mjs")

node = shutil.which("node")
pytestmark = pytest.mark.skipif(node is None, reason="node is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The scripts where node takes them for modules, as a browser does."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for path in [*STATIC.glob("*.js"), UNITS]:
        shutil.copy(path, tmp_path)
    return tmp_path


def run_node(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run node in the folder."""
    return subprocess.run(
        [str(node), *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_every_script_parses(folder: Path) -> None:
    names = sorted(path.name for path in STATIC.glob("*.js"))
    assert "app.js" in names
    faults = {
        name: done.stderr
        for name in names
        if (done := run_node(folder, "--check", name)).returncode
    }
    assert faults == {}


def test_a_fault_would_be_found(folder: Path) -> None:
    (folder / "faulty.js").write_text("const a = ;")
    assert run_node(folder, "--check", "faulty.js").returncode != 0


def test_units(folder: Path) -> None:
    done = run_node(folder, "--test", UNITS.name)
    assert done.returncode == 0, done.stdout + done.stderr
