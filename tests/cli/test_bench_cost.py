"""``mlxcel bench cost``: a tiny geometry from a file, from the command line to the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mlxcel.cli.bench import bench
from mlxcel.cli.bench_cost import GRAPHS, cost
from mlxcel.cli.errors import friendly
from mlxcel.decide.cost_recompute import cost_complaints
from mlxcel.runtime import cost_profile
from tests.support.geometries import tiny_geometry


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets is unset again."""
    monkeypatch.setenv(*GRAPHS)


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-gemma4.json"
    path.write_text(json.dumps(tiny_geometry("tiny-gemma4")))
    return path


def invoke(*args: Any) -> Result:
    class Group(click.Group):
        def main(self, *rest: Any, **more: Any) -> Any:
            return friendly(super().main, *rest, **more)

    group = Group(name="bench", commands={"cost": cost})
    return CliRunner().invoke(group, ["cost", *map(str, args)])


FEW = ("--widths", "4", "--repeats", "1", "--context", "12", "--budget", "0")


def test_a_record_a_page_and_plots_are_written(sizes: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "out"
    result = invoke(
        "-g", sizes, *FEW, "--layers", 2, "-o", folder, "--bandwidth", 50, "--tflops", 0.1
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert "# tiny-gemma4 on" in result.stdout
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    assert cost_complaints(record, str(path)) == []
    assert record["cost"]["peak"]["source"] == "given on the command line"
    assert (record["cost"]["layers"], record["cost"]["layers_published"]) == (2, 4)
    assert record["provenance"]["cost_only"] is True
    names = sorted(p.name.removeprefix(path.stem) for p in folder.iterdir())
    assert names == ["-dark.svg", "-light.svg", ".json", ".md"]
    assert (folder / f"{path.stem}.md").read_text() + "\n" == result.stdout
    sound = CliRunner().invoke(bench, ["verify", str(path)])
    assert (sound.exit_code, sound.stdout) == (0, f"{path}: sound\n")
    again = invoke("--record", path)
    assert (again.exit_code, again.stdout) == (0, result.stdout)
    record["figures"]["forms"][0]["verify_steps"] *= 2
    path.write_text(json.dumps(record))
    refused = invoke("--record", path)
    assert refused.exit_code == 2
    assert "verify_steps is" in refused.stderr
    assert CliRunner().invoke(bench, ["verify", str(path)]).exit_code == 1


def test_one_form_without_padding_as_json(sizes: Path) -> None:
    result = invoke("-g", sizes, *FEW, "--weights", "stored", "--pad", 1, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert set(record["cost"]["target_bytes"]) == {"stored"}
    assert {t["tokens"] for t in record["timings"]} == {1, 4}


def test_the_names_are_listed_with_their_sources() -> None:
    result = invoke("-g", "list")
    assert result.exit_code == 0
    for text in ("gemma-4-31b: 60 layers", "qwen3.5-27b: 64 layers", "sizes from:"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-g", "gemma-9"), "no published geometry (gemma-4-31b, gemma-4-12b,"),
        (("-g", "gemma-4-31b", "--layers", 7), "multiple of 6"),
        (("-g", "gemma-4-31b", "--widths", "4,x"), "whole numbers with commas"),
        (("-g", "gemma-4-31b", "--widths", "2,3"), "4 among the widths"),
        (("-g", "gemma-4-31b", "--bandwidth", 100), "together or not at all"),
        (("-g", "nowhere/none.json"), "no JSON file"),
        ((), "give either --geometry or --record"),
        (("-g", "gemma-4-31b", "--record", "r.json"), "give either --geometry or --record"),
        (("--record", "nowhere.json"), "nowhere.json: not readable as JSON"),
    ],
)
def test_mistakes_are_one_line(args: tuple[Any, ...], message: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_geometry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{")
    assert "bad.json: not readable as JSON" in invoke("-g", path).stderr
    path.write_text("[]")
    assert "geometry bad must be an object" in invoke("-g", path).stderr


def test_too_little_memory_is_said_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_profile, "device_bytes", lambda backend: 1 << 30)
    result = invoke("-g", "gemma-4-31b", "--weights", "dense")
    assert result.exit_code == 2
    assert "GiB needed, 1.0 GiB available; build fewer layers" in result.stderr
