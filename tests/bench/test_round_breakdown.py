"""``benchmarks.round_breakdown`` on a pairing that the exactness probe declines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.round_breakdown import main
from mlxcel.decide.exactness import unprobed
from tests.support.checkpoints import write_tiny_llama


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a quick run; every probe declines."""

    def declined(model: Any, width: int, settings: Any, **_: Any) -> Any:
        return unprobed(width, "a made-up divergence")

    monkeypatch.setattr("mlxcel.engine.vetoes.exactness_of", declined)
    monkeypatch.setattr("mlxcel.engine.vetoes.kept_exactness", lambda *_, **__: None)
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path / "cache"))
    model = write_tiny_llama(tmp_path / "tiny")
    return [
        "--model", str(model), "--drafter", "lookup", "--weights", "stored",
        "--widths", "2", "--tokens", "40", "--repeats", "1",
    ]  # fmt: skip


def test_one_line_says_what_to_do(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["round_breakdown", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.startswith("round_breakdown: speculation at width 2 is not exact here: not probed")
    assert said.endswith("--probe-off measures what the exactness probe declines\n")
    assert said.count("\n") == 1


def test_it_measures_with_the_probe_off(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    given = [*arguments, "--probe-off", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["round_breakdown", *given])
    main()
    figures = json.loads(path.read_text())
    assert figures["widths"]["2"]["rounds"] > 0
    assert figures["widths"]["2"]["verify"] > 0
