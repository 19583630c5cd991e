"""``mlxcel bench compare``, ``predict`` and ``submit``: what they say, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import mlxcel
from mlxcel.cli import bench_records, main
from mlxcel.decide.prediction import parse_prediction
from mlxcel.errors import ConfigError, LoadError
from mlxcel.evidence import load_predictions, load_records
from tests.decide.evidence import campaign, row
from tests.support.measured_values import measured_value


@click.group()
def bench():
    """A group of the tests' own."""


for _command in (bench_records.compare, bench_records.predict_command, bench_records.submit):
    bench.add_command(_command)


def invoke(*words, fails=None):
    """Output of a command; with ``fails`` the message of that error."""
    result = CliRunner().invoke(bench, [str(word) for word in words], env={"COLUMNS": "100"})
    if fails is None:
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout
    assert isinstance(result.exception, fails), (result.output, result.exception)
    return result.exception.message


def as_json(*words):
    return json.loads(invoke(*words, "--json"))


def flat(text):
    return " ".join(text.split())


@pytest.fixture
def own(tmp_path):
    """A folder of evidence of one's own, empty yet."""
    return tmp_path / "own"


# -- compare ------------------------------------------------------------------------------


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Runs compare on two JSON values."""
    # Parsing has its own tests; here the values hold only what a comparison reads.
    monkeypatch.setattr(bench_records, "load_record", lambda path: json.loads(path.read_text()))
    monkeypatch.setattr(bench_records, "record_to_dict", lambda value: value)

    def run(one, two, *words, **how):
        paths = [tmp_path / "one.json", tmp_path / "two.json"]
        for path, value in zip(paths, (one, two), strict=True):
            path.write_text(json.dumps(value))
        return invoke("compare", *paths, *words, **how)

    return run


def test_compare_shows_every_arm_with_its_verdict(compare):
    one, two = measured_value("one"), measured_value("two", speculative=44, seed=2)
    text = flat(compare(one, two))
    assert text.startswith("two against one")
    assert "first: 2026-11-30T21:05:00Z, 000000000000" in text
    assert "2 faster, 0 slower, 2 undecided" in text
    assert "code/120/4 classic" in text
    found = json.loads(compare(one, two, "--json"))
    assert [(r["arm"], r["verdict"]) for r in found["rows"]] == [
        ("classic", "undecided"), ("speculative", "faster"),
    ] * 2  # fmt: skip
    assert found["rows"][1]["interval"][0] > 1


def test_compare_says_why_a_sure_difference_is_undecided(compare):
    bad = {"publishable": False, "reasons": ["spread 9 %"]}
    text = flat(compare(measured_value(), measured_value("two", speculative=44, seed=2, row=bad)))
    assert "code/120/4 speculative: would be faster, but a row is not publishable" in text
    assert text.count("code/120/4: second record: spread 9 %") == 1
    few = [measured_value(blocks=1), measured_value("two", blocks=1, seed=2)]
    assert "2 and 2 samples cannot give p below 0.33" in flat(compare(*few))


def test_compare_refuses_what_was_not_taken_alike_and_names_it(compare):
    two = measured_value("two", provenance={"blas": "reference", "python": "3.12"})
    message = compare(measured_value(), two, fails=ConfigError)
    assert "they differ in python: 3.11.9 against 3.12; blas: OpenBLAS against reference" in message
    assert "python" not in compare(measured_value(), two, "--vary", "python", fails=ConfigError)
    assert "undecided" in compare(measured_value(), two, "--vary", "python", "--vary", "blas")


def test_compare_of_published_records_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(campaign("a", rows=(2.0,))))
    assert "a has no provenance" in invoke("compare", path, path, fails=ConfigError)


# -- predict ------------------------------------------------------------------------------

SWEEP = "m3ultra-31b-sweep-2026-08-20"
FOUNDING = ("--host", "M1 Ultra", "--widths", "requested", "--through", "Gemma 4 12B")


def test_predict_writes_a_record_that_gate_predictions_judges(own):
    text = flat(invoke("predict", SWEEP, *FOUNDING, "--evidence", own))
    assert "round cost: 3.60 +/- 0.20" in text
    [path] = (own / "predictions").iterdir()
    assert str(path) in text.replace(" ", "")
    made = parse_prediction(json.loads(path.read_text()))
    assert path.stem == made.id
    assert (made.chip, made.pairing, made.width) == ("Apple M1 Ultra", "Gemma 4 31B", 4)
    assert "m1ultra-31b-2026-09-04" in (made.notes or "")
    assert load_predictions([own])[-1] == made

    later = row(speedup=0.9, emitted_per_verify=3.3, prompt="code")
    (own / "later.json").write_text(
        json.dumps(campaign("later", "M1", rows=[later], date="2199-01-01"))
    )
    found = json.loads(
        CliRunner().invoke(main, ["gate", "predictions", "--json", "--evidence", str(own)]).stdout
    )
    [judged] = [item for item in found if item["id"] == made.id]
    assert (judged["verdict"], {o["record"] for o in judged["outcomes"]}) == ("held", {"later"})


def test_predict_from_a_file_and_without_writing(own, tmp_path):
    packaged = Path(mlxcel.evidence.__file__).with_name(f"{SWEEP}.json")
    copy = tmp_path / "copy.json"
    copy.write_text(packaged.read_text())
    found = as_json("predict", copy, *FOUNDING, "--evidence", own, "--dry-run")
    assert found["file"] is None
    assert not own.exists()
    other = json.loads(packaged.read_text()) | {"notes": "another"}
    copy.write_text(json.dumps(other))
    assert "another record with the id" in invoke("predict", copy, *FOUNDING, fails=LoadError)


def test_predict_takes_names_in_any_case(own):
    words = ("--evidence", own, "--dry-run")
    found = as_json("predict", SWEEP, "--host", "APPLE M1 ULTRA", *words)
    assert found["chip"] == "Apple M1 Ultra"
    source = "m1ultra-12b-sweep-2026-08-19"
    found = as_json("predict", source, "--pairing", "qwen3.8 27b", "--width", "3", *words)
    assert (found["chip"], found["pairing"]) == ("Apple M1 Ultra", "Qwen3.8 27B")


def test_predict_never_overwrites(own):
    words = ("predict", SWEEP, *FOUNDING, "--evidence", own)
    invoke(*words)
    [path] = (own / "predictions").iterdir()
    before = path.read_text()
    assert f"{path} is there already" in invoke(*words, "--by", "someone else", fails=LoadError)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ((SWEEP,), ConfigError, "give one"),
        (("no-such", *FOUNDING), LoadError, "'no-such' is neither the id of a record nor a file"),
        ((SWEEP, "--host", "Apple M2 Max"), ConfigError, "nothing leads from"),
        ((SWEEP, "--pairing", "teapot"), ConfigError, "sweeps of both Gemma 4 31B and teapot"),
        ((SWEEP, "--host", "teapot"), ConfigError, "--host 'teapot' is no host"),
    ],
)
def test_predict_refuses(own, words, error, message):
    assert message in invoke("predict", *words, "--evidence", own, fails=error)
    assert not own.exists()


# -- submit -------------------------------------------------------------------------------


@pytest.fixture
def new(tmp_path):
    """A file with a record of a generation that nobody has measured."""
    path = tmp_path / "measured today.json"
    path.write_text(json.dumps(campaign("m4-31b", "M4", (1.8,), exactness="exact")))
    return path


@pytest.fixture(autouse=True)
def complaints(monkeypatch):
    """What verifying a record complains about; nothing by default."""
    found: list[str] = []
    monkeypatch.setattr(bench_records, "verify_record", lambda record: found)
    return found


def test_submit_copies_the_record_under_its_id_and_shows_what_changes(new, own):
    text = flat(invoke("submit", new, "--evidence", own))
    assert (own / "m4-31b.json").read_text() == new.read_text()
    assert "m4-31b: Apple M4 Max, Gemma 4 31B" in text
    assert "M4 inferred" in text
    assert "measured gain" in text
    assert "missing: M4, any" in text
    assert "gate decide then disagrees (changed) on M4" in text
    assert len(load_records([own])) == len(load_records()) + 1


def test_submit_as_json_and_without_copying(new, own):
    found = as_json("submit", new, "--evidence", own, "--dry-run")
    assert (found["record"], found["file"], found["agrees"]) == ("m4-31b", None, False)
    assert "M4" in {item["name"] for item in found["subjects"]}
    assert "M4, any" in {item["subject"] for item in found["settled"]}
    assert not own.exists()


def test_submit_refuses_a_record_with_a_figure_that_does_not_follow(new, own, complaints):
    complaints += ["rows[0]: speedup is 1.9, but 1.8 by the samples", "n is 7, not 6"]
    message = invoke("submit", new, "--evidence", own, fails=LoadError)
    assert message == f"{new} is not added: {'; '.join(complaints)}"
    assert not own.exists()


def test_submit_never_overwrites(new, own):
    invoke("submit", new, "--evidence", own)
    before = (own / "m4-31b.json").read_text()
    new.write_text(before.replace("1.8", "1.7"))
    message = invoke("submit", new, "--evidence", own, fails=LoadError)
    assert "a record with this id is there already" in message
    new.write_text(before.replace("m4-31b", "m4-31b-copy"))
    assert "m4-31b under another id" in invoke("submit", new, "--evidence", own, fails=LoadError)
    assert (own / "m4-31b.json").read_text() == before


def test_submit_of_a_file_that_is_no_record(tmp_path, own):
    path = tmp_path / "a.json"
    path.write_text("{")
    assert f"{path}: not readable as JSON" in invoke("submit", path, "--evidence", own,
                                                     fails=LoadError)  # fmt: skip


def test_submit_to_a_folder_that_cannot_be_written(new, tmp_path):
    (tmp_path / "file").write_text("")
    message = invoke("submit", new, "--evidence", tmp_path / "file" / "own", fails=LoadError)
    assert "cannot be written" in message


# -- all ----------------------------------------------------------------------------------


def test_help_and_json_load_neither_rich_nor_mlx():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from mlxcel.cli import bench_guards, bench_records as b\n"
        f"words = [{SWEEP!r}, '--host', 'M1 Ultra', '--dry-run', '--json']\n"
        "assert CliRunner().invoke(b.predict_command, words).exit_code == 0\n"
        "print([m for m in ('rich', 'mlx.core', 'numpy', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")
