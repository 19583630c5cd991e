"""``mlxcel bench cost``: a tiny geometry from a file, from the command line to the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import mlxcel.evidence
from mlxcel.bench.host_lock import benchmark_lock
from mlxcel.cli.bench import bench
from mlxcel.cli.bench_cost import GRAPHS, cost
from mlxcel.cli.errors import friendly
from mlxcel.decide.cost_recompute import cost_complaints
from mlxcel.errors import LoadError
from mlxcel.runtime import cost_profile
from tests.support.geometries import tiny_geometry

COST = Path(mlxcel.evidence.__file__).parent / "cost"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the command sets is unset again; the lock of benchmarks is the test's own."""
    monkeypatch.setenv(*GRAPHS)
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path / "cache"))


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


FEW = ("--widths", "4", "--repeats", "1", "--context", "12", "--budget", "0", "--no-wait")


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
    result = invoke("-g", "gemma-4-31b", "--weights", "dense", "--no-wait")
    assert result.exit_code == 2
    assert "GiB needed, 1.0 GiB available; build fewer layers" in result.stderr


def test_the_record_says_what_the_guards_found(sizes: Path, tmp_path: Path) -> None:
    result = invoke("-g", sizes, *FEW, "--weights", "stored", "--pad", 1, "--json")
    record = json.loads(result.stdout)
    guards = record["provenance"]["guards"]
    assert (guards["quiet"]["ran"], guards["contention"]["ran"]) == (False, True)
    assert record["protocol"] == "unguarded"  # without the wait, not all of them ran
    guarded = json.loads(result.stdout)
    guarded["protocol"] = "guarded"
    assert any("protocol is 'guarded'" in line for line in cost_complaints(guarded, "file"))
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    shown = invoke("--record", path)
    assert "Guards, to read the figures with care: not guarded: the quiet gate" in shown.stdout


def test_two_at_once_are_refused(sizes: Path, tmp_path: Path) -> None:
    with benchmark_lock(tmp_path / "cache"):
        result = invoke("-g", sizes, *FEW)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "another benchmark" in result.stderr


def test_a_record_of_the_day_is_refused_before_measuring(
    sizes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    args = ("-g", sizes, *FEW, "--weights", "stored", "--pad", 1, "-o", tmp_path / "out")
    assert invoke(*args).exit_code == 0
    (path,) = (tmp_path / "out").glob("*.json")
    before = path.read_bytes()
    monkeypatch.setattr(cost_profile, "measure_costs", lambda *a, **k: pytest.fail("measured"))
    refused = invoke(*args)
    assert refused.exit_code == 2
    assert "is there already" in refused.stderr
    assert path.read_bytes() == before
    assert invoke("--record", path, "-o", tmp_path / "out").exit_code == 0  # the page again
    assert path.read_bytes() == before


def test_another_kind_of_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"schema": 1, "schema": 2}')
    assert "occurs twice" in invoke("--record", path).stderr
    path.write_text('{"schema": 2, "rows": []}')
    assert "is no cost-only record" in invoke("--record", path).stderr
    path.write_text("[]")
    assert "is no cost-only record" in invoke("--record", path).stderr


@pytest.mark.parametrize("command", ["submit", "compare"])
def test_a_cost_record_is_no_record_of_rows(command: str) -> None:
    path = str(sorted(COST.glob("*.json"))[0])
    result = CliRunner().invoke(bench, [command, *[path] * (1 + (command == "compare"))])
    assert isinstance(result.exception, LoadError)
    assert "is a cost-only record" in str(result.exception)
