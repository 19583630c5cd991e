"""``mlxcel demo``: the packaged head on the standard prompts, without a download."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxcel.assets import standard_prompts
from mlxcel.cli import main


def invoke(*args: str) -> str:
    words = ["demo", "--repeats", "1", "--max-tokens", "6", *args]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "100"})
    assert (result.exit_code, result.exception) == (0, None)
    return result.stdout


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_standard_prompts(demo_folder: Path) -> None:
    text = invoke()
    assert "drafter demo, width 4" in text
    assert "verdict of the gate: a request " in text
    for name in standard_prompts():
        assert name in text
    assert row(text, "token ids") == ["equal"] * 3
    assert row(text, "tokens") == ["6"] * 3
    assert all(float(value) >= 1 for value in row(text, "tokens per verify"))
    assert float(row(text, "acceptance")[0]) > 0.5
    for name in ("round cost (classic steps)", "classic tok/s", "speculative tok/s", "speed-up"):
        assert all(float(value) > 0 for value in row(text, name))
    assert "The answers are equal, token for token." in text


def test_a_prompt_of_ones_own(demo_folder: Path) -> None:
    text = invoke("--prompt", "Say [b]hello[/b].", "--drafter", "lookup", "--width", "6")
    assert "drafter lookup, width 6" in text
    assert row(text, "token ids") == ["equal"]


@pytest.mark.parametrize("repeats", ["0", "-1"])
def test_repeats_are_positive(repeats: str) -> None:
    result = CliRunner().invoke(main, ["demo", "--repeats", repeats])
    assert result.exit_code == 2
