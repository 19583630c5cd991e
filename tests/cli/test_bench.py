"""``mlxcel bench``: a tiny real pairing from the command to the files, and verifying them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlxcel.bench import pairings
from mlxcel.bench.protocol import Plan
from mlxcel.bench.results import record_text
from mlxcel.cli import main
from mlxcel.decide.record_json import parse_record, record_to_dict
from mlxcel.errors import LoadError
from tests.decide.evidence import campaign as published
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import measured_record
from tests.support.checkpoints import write_tiny_llama

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home") / "cache"


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(cache))


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, words)])


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def test_speculative_writes_a_record_that_can_be_verified(tiny, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("hello hello hello hello")
    out = tmp_path / "out"
    done = bench(
        "speculative", "-m", tiny, "--drafter", "lookup", "-k", 3, "-n", 16, "--blocks", 1,
        "--prompts", "code", "--prompt-file", mine, "-o", out, "--id", "tiny-run", "--no-wait",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    value = read(out / "tiny-run.json")
    record = parse_record(value)
    assert record.provenance is not None
    assert [(row.prompt, row.requested_width) for row in record.rows] == [("code", 3), ("mine", 3)]
    assert all(row.exact for row in record.rows)
    assert all("too few repetitions" in (row.reasons or ("",))[0] for row in record.rows)
    assert (record.pairing.name, record.pairing.drafter) == ("tiny", "lookup")
    assert (record.pairing.kind, record.pairing.batch_capable) == ("prompt-lookup", True)
    assert record.provenance.exactness is not None
    assert record.provenance.exactness.level in ("bitwise", "token")
    assert record.provenance.command[0] == "mlxcel"
    assert ("MLXCEL_CACHE_DIR", "cache") in record.provenance.environment
    assert str(tmp_path.parent) not in json.dumps(value)
    assert "too few repetitions" in done.stdout
    checked = bench("verify", out / "tiny-run.json")
    assert (checked.exit_code, checked.stdout) == (0, f"{out / 'tiny-run.json'}: sound\n")
    report = (out / "tiny-run.md").read_text()
    assert "tiny-run-speedup-light.svg" in report
    assert (out / "tiny-run-speedup-dark.svg").exists()
    guards = record.provenance.guards
    assert (guards["quiet"]["ran"], guards["contention"]["ran"]) == (False, True)
    again = bench("speculative", "-m", tiny, "--drafter", "lookup", "-o", out, "--id", "tiny-run")
    assert again.exit_code == 2
    assert "is there already" in again.stderr


def test_width_sweeps_the_code_prompt(tiny, tmp_path):
    done = bench(
        "width", "-m", tiny, "--drafter", "lookup", "--widths", "2,3,4", "-n", 16, "--blocks", 1,
        "-o", tmp_path, "--id", "sweep", "--no-wait",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = parse_record(read(tmp_path / "sweep.json"))
    assert [(row.prompt, row.requested_width) for row in record.rows] == [
        ("code", 2), ("code", 3), ("code", 4),
    ]  # fmt: skip
    assert len(record.fits) == 1
    assert "a round costs" in (tmp_path / "sweep.md").read_text()
    assert (tmp_path / "sweep-cost-code-light.svg").exists()
    assert bench("verify", tmp_path / "sweep.json").exit_code == 0


def test_an_edited_record_is_refused(tmp_path):
    good, bad, old = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "old.json"
    value = record_to_dict(measured_record(name="good"))
    good.write_text(json.dumps(value))
    old.write_text(json.dumps(published(rows=[2.0])))
    stored = value["rows"][1]["speedup"]
    value["rows"][1]["speedup"] = 2.5
    bad.write_text(json.dumps(value))
    done = bench("verify", good, bad, old)
    assert done.exit_code == 1
    assert done.stdout == f"{good}: sound\n{old}: sound\n"
    assert (
        f"{bad}: rows[1] (prose, width 4): speedup is 2.5, but {stored} by the raw samples"
        in done.stderr
    )


def test_what_is_no_record_is_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    done = bench("verify", tmp_path / "a.json")
    assert done.exit_code == 2
    assert "not readable as JSON" in done.stderr


def test_a_width_that_no_request_may_have_is_refused_before_the_load(monkeypatch, tmp_path):
    def load(*args: Any, **_: Any) -> None:
        pytest.fail("loaded")

    monkeypatch.setattr(importlib.import_module("mlxcel.cli.bench_options"), "load", load)
    done = bench(
        "width", "-m", "some/model", "--drafter", "lookup", "--widths", "2,99", "-o", tmp_path,
        "--no-wait",
    )  # fmt: skip
    assert done.exit_code == 2
    assert "width must be 2 to max_width = 16, got 99; MLXCEL_MAX_WIDTH raises it" in done.stderr


def test_a_pairing_that_is_not_there_says_what_it_needs(monkeypatch, tmp_path):
    def load(target: str, drafter: str, **_: Any) -> None:
        raise LoadError(f"{target}: no such folder here")

    monkeypatch.setattr(importlib.import_module("mlxcel.cli.bench_options"), "load", load)
    done = bench("speculative", "--pairing", "gemma31b", "-o", tmp_path, "--no-wait")
    assert done.exit_code == 2
    assert "the pairing 'Gemma 4 31B' needs the target mlx-community/gemma-4-31b-it-4bit" in (
        done.stderr
    )
    assert "no such folder here" in done.stderr
    wait = "--no-wait"
    done = bench("speculative", "-m", "some/model", "--drafter", "lookup", "-o", tmp_path, wait)
    assert done.stderr == "mlxcel: error: some/model: no such folder here\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["speculative", "-m", "some/model"], "needs a drafter"),
        (["speculative", "--pairing", "demo", "-m", "x"], "name two targets"),
        (["speculative", "--prompts", "poem"], "there is no prompt 'poem'"),
        (["speculative", "--prompt-file", "nowhere.txt"], "nowhere.txt: not readable as text"),
        (["width", "--widths", "2,x"], "give whole numbers with commas"),
        (["width", "--widths", "1,2"], "at least 2"),
        (["verify"], "Missing argument"),
    ],
)
def test_bad_options_are_named(words, reason):
    done = bench(*words)
    assert done.exit_code == 2
    assert reason in done.stderr


def test_quick_is_short_unless_told_otherwise(monkeypatch):
    plans = []
    module = importlib.import_module("mlxcel.cli.bench")
    monkeypatch.setattr(module, "measure", lambda tool, plan, *_, **more: plans.append(plan))
    assert bench("speculative", "--quick").exit_code == 0
    assert bench("speculative", "--quick", "-n", 32).exit_code == 0
    assert bench("width").exit_code == 0
    quick, short, sweep = plans
    assert (tuple(quick.prompts), quick.tokens, quick.blocks) == (
        ("enumeration", "code", "prose"), 64, 2,
    )  # fmt: skip
    assert (short.tokens, short.blocks) == (32, 2)
    assert (tuple(sweep.prompts), sweep.tokens, sweep.blocks) == (("code",), 128, 3)
    assert sweep.widths == (2, 3, 4, 5, 6, 8)


def test_checkpoints_of_a_pairing_may_lie_in_a_folder_of_models(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "gemma-4-31b-it-4bit").mkdir(parents=True)
    found, named = pairings.checkpoints_of("gemma31b", None, None)
    assert named
    assert found.target == str(Path("models") / "gemma-4-31b-it-4bit")
    assert found.drafter == pairings.PAIRINGS["gemma31b"].drafter
    found, _ = pairings.checkpoints_of("gemma31b", None, "lookup")
    assert found.drafter == "lookup"
    assert pairings.checkpoints_of(None, None, None)[0] == pairings.PAIRINGS["demo"]
    assert pairings.checkpoints_of(None, "demo", None)[0].drafter == "demo"


def test_a_head_inside_of_its_target_is_taken_from_the_same_checkpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "Qwen3.8-27B").mkdir(parents=True)
    found, _ = pairings.checkpoints_of("qwen", None, None)
    assert (found.target, found.drafter) == (str(Path("models") / "Qwen3.8-27B"), "mtp")


def test_prompts_of_ones_own(tmp_path):
    path = tmp_path / "code.txt"
    path.write_text("  mine\n")
    assert pairings.chosen_prompts((), (path,)) == {"code": "mine"}
    assert list(pairings.chosen_prompts((), ())) == ["enumeration", "code", "prose"]
    with pytest.raises(ValueError, match="two prompts are called 'code'"):
        pairings.chosen_prompts(("code",), (path,))
    path.write_text(" ")
    with pytest.raises(LoadError, match="is empty"):
        pairings.chosen_prompts((), (path,))


def test_measured_records_can_be_compared_and_submitted(tmp_path):
    plan = Plan(prompts={"code": "c"}, widths=(4,), tokens=41, blocks=4)
    paths = {}
    for name, step in (("one", 0.01), ("two", 0.012)):
        host = SimulatedHost(noise=0.002, step=step)
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(record_text(measured_record(host, plan, name=name)))
    done = bench("compare", paths["one"], paths["two"], "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["arm"], row["verdict"]) for row in rows] == [
        ("classic", "slower"), ("speculative", "slower"),
    ]  # fmt: skip
    folder = tmp_path / "evidence"
    done = bench("submit", paths["one"], "--evidence", folder)
    assert done.exit_code == 0, done.output
    assert read(folder / "one.json") == read(paths["one"])
    value = read(paths["two"])
    value["rows"][0]["speedup"] = 2.5
    paths["two"].write_text(json.dumps(value))
    done = bench("submit", paths["two"], "--evidence", folder)
    assert done.exit_code != 0
    assert not (folder / "two.json").exists()
