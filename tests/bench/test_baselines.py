"""Baselines as files, and the command around them, with a suite that is made up."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import baseline_store as store
from benchmarks import regress
from benchmarks.regression import Measurement
from mlxcel.errors import LoadError

HERE = {"chip": "Chip (R) 9", "cores": "2", "mlx": "1", "mlx-lm": "2"}


def measured(*ratios: float, reference: str = "loop") -> Measurement:
    runs = [[ratio * (1 + 0.001 * at) for at in range(9)] for ratio in ratios]
    return Measurement(reference=reference, seconds=[[0.004] * 9 for _ in runs], ratios=runs)


class FakeSuite(regress.Suite):
    """Gives what was prepared, process by process."""

    def __init__(self, *runs: dict[str, float], counters: Any = None, only: str = "") -> None:
        super().__init__(only)
        self.prepared = list(runs)
        self.counters = {"classic": {"reads": 8}} if counters is None else counters
        self.asked: list[list[str]] = []

    def run(self, names: Sequence[str] = ()) -> Any:
        self.asked.append(list(names))
        run = self.prepared.pop(0)
        chosen = {name: measured(run[name]) for name in run if not names or name in names}
        return chosen, {} if names else self.counters


def arguments(folder: Path, **more: Any) -> Namespace:
    return Namespace(folder=folder, runs=3, accept_unsteady=False, **more)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    fingerprint = dict(HERE)
    monkeypatch.setattr(store, "fingerprint", lambda: fingerprint)
    return fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a baseline of two benchmarks."""
    runs = [{"a": 1.0, "b": 2.0}, {"a": 1.01, "b": 2.01}, {"a": 0.99, "b": 1.99}]
    assert regress.baseline(FakeSuite(*runs), arguments(tmp_path)) == 0
    return tmp_path


def test_a_baseline_is_read_as_it_was_written(folder: Path) -> None:
    [found] = store.read_baselines(folder)
    assert found.fingerprint == HERE
    assert set(found.made) == {"at", "unsteady"}
    assert list(found.benchmarks) == ["a", "b"]
    assert [len(each.ratios) for each in found.benchmarks.values()] == [3, 3]
    assert found.benchmarks["a"].median == pytest.approx(1.004, abs=1e-3)
    [path] = [each for each in folder.iterdir() if each.name != store.COUNTERS]
    assert re.fullmatch(r"chip-r-9-2-cores-[0-9a-f]{8}\.json", path.name)
    assert store.read_counters(folder) == ({"classic": {"reads": 8}}, {"mlx": "1", "mlx-lm": "2"})


def test_equal_measurements_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = FakeSuite({"a": 1.0, "b": 2.0})
    assert regress.check(suite, arguments(folder)) == 0
    assert suite.asked == [[]]
    assert "no regression in 2 benchmarks and the counters of 1 cases" in capsys.readouterr().out


def test_what_looks_slower_is_measured_again_and_fails_if_it_stays_so(folder: Path) -> None:
    slow = FakeSuite({"a": 1.2, "b": 2.0}, {"a": 1.2}, {"a": 1.19})
    assert regress.check(slow, arguments(folder)) == 1
    assert slow.asked == [[], ["a"], ["a"]]
    once = FakeSuite({"a": 1.2, "b": 2.0}, {"a": 1.0}, {"a": 1.0})
    assert regress.check(once, arguments(folder)) == 0


def test_a_missing_benchmark_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert regress.check(FakeSuite({"a": 1.0, "renamed": 2.0}), arguments(folder)) == 1
    out = capsys.readouterr().out
    assert "MISSING    b: " in out
    assert "new        renamed: " in out


def test_with_a_choice_only_that_can_be_missing(folder: Path) -> None:
    assert regress.check(FakeSuite({"a": 1.0}, only="a"), arguments(folder)) == 0
    assert regress.check(FakeSuite({"c": 1.0}, only="b"), arguments(folder)) == 1


def test_a_counter_that_rose_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = FakeSuite({"a": 1.0, "b": 2.0}, counters={"classic": {"reads": 16}})
    assert regress.check(suite, arguments(folder)) == 1
    assert "ROSE       classic: reads: 8 -> 16" in capsys.readouterr().out


def test_another_fingerprint_is_refused_before_measuring(
    folder: Path, here: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    here |= {"mlx": "1.1"}
    assert regress.check(FakeSuite(), arguments(folder)) == 1
    out = capsys.readouterr().out
    assert "mlx: 1 in the baseline, 1.1 here" in out
    assert "make bench-baseline" in out
    assert regress.check(FakeSuite(), arguments(folder / "empty")) == 1
    assert "no baseline yet" in capsys.readouterr().out


def test_an_unsteady_baseline_is_measured_again_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = regress.trouble
    monkeypatch.setattr(regress, "trouble", lambda each: "jumps" if each.median > 3 else "")
    runs = [{"a": 1.0, "b": 4.0}] * 3
    again = FakeSuite(*runs, *[{"b": 2.0}] * 3)
    assert regress.baseline(again, arguments(tmp_path)) == 0
    assert again.asked == [[], ["a", "b"], ["a", "b"], ["b"], ["b"], ["b"]]
    [found] = store.read_baselines(tmp_path)
    assert found.benchmarks["b"].median < 3
    refused = FakeSuite(*runs, *[{"b": 4.0}] * 3)
    assert regress.baseline(refused, arguments(tmp_path / "none")) == 1
    assert not (tmp_path / "none").exists()
    accepted = Namespace(folder=tmp_path / "some", runs=3, accept_unsteady=True)
    assert regress.baseline(FakeSuite(*runs, *[{"b": 4.0}] * 3), accepted) == 0
    [kept] = store.read_baselines(tmp_path / "some")
    assert kept.made["unsteady"] == {"b": "jumps"}
    assert steady(kept.benchmarks["a"]) == ""


def test_a_chosen_part_replaces_only_itself(folder: Path) -> None:
    assert regress.baseline(FakeSuite(*[{"b": 3.0}] * 3, only="b"), arguments(folder)) == 0
    [found] = store.read_baselines(folder)
    assert [round(each.median, 1) for each in found.benchmarks.values()] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ('{"schema": 9}', "not of schema 1"),
        ('{"schema": 1}', "no baseline"),
        ('{"schema": 1, "fingerprint": {}, "made": {}, "benchmarks": {"a": {}}}', "no baseline"),
    ],
)
def test_a_damaged_baseline_is_named(folder: Path, text: str, said: str) -> None:
    (folder / "bad.json").write_text(text)
    with pytest.raises(LoadError, match=rf"bad\.json: .*{said}"):
        store.read_baselines(folder)


def test_a_report_of_pytest_is_read_without_what_has_no_reference() -> None:
    rows = [
        {"fullname": "b.py::test_x[1]", "param": "1", "extra_info": {
            "reference": "loop", "seconds": [1.0], "reference_seconds": [1, 1], "ratios": [1.0]}},
        {"fullname": "b.py::test_counters[classic]", "param": "classic", "extra_info": {
            "counters": {"reads": 8}}},
        {"fullname": "b.py::test_oracle", "param": None, "extra_info": {}},
    ]  # fmt: skip
    found, counters = store.of_pytest(json.loads(json.dumps({"benchmarks": rows})))
    assert list(found) == ["b.py::test_x[1]"]
    assert counters == {"classic": {"reads": 8}}
