"""``mlxcel gate``: every command, as tables and as JSON, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import mlxcel
from mlxcel.cli import main
from mlxcel.decide.chips import GATE_TABLE
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.evidence import load_predictions, load_records
from tests.decide.evidence import campaign

RECORDS = load_records()
ROWS = sum(len(record.rows) for record in RECORDS)
MEASURED = sum(len(record.rows) for record in RECORDS if record.origin == "measured")
TABLES = (["evidence"], ["decide"], ["audit"], ["predictions"], ["status"],
          ["explain", "--host", "Apple M3 Ultra"])  # fmt: skip


def invoke(*words, status=0, **environ):
    result = CliRunner().invoke(main, ["gate", *words], env={"COLUMNS": "80"} | environ)
    assert result.exit_code == status, result.output
    return result.stdout


def as_json(*words, **how):
    return json.loads(invoke(*words, "--json", **how))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def m1_gains(tmp_path):
    """A folder with rows that contradict the gate's table: M1 Ultra gains on the exact path."""
    path = tmp_path / "evidence" / "a.json"
    path.parent.mkdir()
    rows = campaign("m1-gains", "M1", (2.0, 1.9), exactness="exact")
    other = campaign("m1-qwen", "M1", (1.8,), pairing="Qwen3.8 27B", exactness="exact")
    path.write_text(json.dumps(rows))
    path.with_name("b.json").write_text(json.dumps(other))
    return path.parent


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("words", TABLES)
def test_tables_fit_and_have_no_colour_outside_a_terminal(cache, words, columns):
    text = invoke(*words, COLUMNS=columns)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= max(int(columns), len(str(cache)) + 50)


@pytest.mark.parametrize("words", [["--help"], ["explain", "--help"], ["decide", "--json"]])
def test_help_and_json_load_neither_rich_nor_mlx(words):
    code = (
        "import atexit, sys;"
        "atexit.register(lambda: print([m for m in ('rich', 'mlx.core') if m in sys.modules]));"
        f"from mlxcel.cli import main; main(['gate', *{words}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[]\n")


# -- evidence ---------------------------------------------------------------------------


def test_evidence_has_every_row_and_marks_each():
    text = invoke("evidence")
    assert f"{ROWS} rows of" in text
    marks = [line[2] for line in text.splitlines() if line[:5] in ("  P  ", "  M  ")]
    assert (len(marks), marks.count("M")) == (ROWS, MEASURED)
    assert all(record.id in text for record in RECORDS if record.rows)


def test_evidence_marks_rows_of_a_folder_as_measured(tmp_path):
    mine = campaign("mine", "M3", (2.0,), origin="measured", address=None,
                    round_loop=ROUND_LOOP_VERSION)  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    text = invoke("evidence", "--evidence", str(tmp_path))
    assert f"{MEASURED + 1} measured here (M)" in text
    assert sum(line.startswith("  M  ") for line in text.splitlines()) == MEASURED + 1
    assert len(as_json("evidence", "--evidence", str(tmp_path))) == ROWS + 1


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), lambda r: True),
        (("--host", "m3 ultra"), lambda r: r.host.chip == "Apple M3 Ultra"),
        (("--pairing", "31b"), lambda r: "31B" in r.pairing.name),
        (("--generation", "m5"), lambda r: r.host.generation == "M5"),
        (
            ("--host", "m1", "--pairing", "qwen"),
            lambda r: r.host.generation == "M1" and "Qwen" in r.pairing.name,
        ),
    ],
)
def test_filters(words, kept):
    wanted = [record.id for record in RECORDS if kept(record) for _ in record.rows]
    assert [row["record"] for row in as_json("evidence", *words)] == wanted
    assert wanted


def test_a_row_of_json_has_what_follows_from_it():
    rows = as_json("evidence", "--pairing", "31b", "--host", "m3 ultra")
    [code] = [r for r in rows if r["record"] == "m3ultra-31b-2026-08-20" and r["prompt"] == "code"]
    assert (code["origin"], code["age"], code["exactness"]) == (
        "published", "current", "inexact-wide"
    )  # fmt: skip
    assert round(code["round_cost"], 2) == 1.51
    assert code["pairing"]["governed"] is True


def test_filters_that_leave_nothing_name_what_there_is():
    text = invoke("evidence", "--host", "M9")
    assert text.startswith("No row matches.")
    assert "Apple M3 Ultra" in text
    assert as_json("evidence", "--host", "M9") == []


def test_a_folder_that_is_not_there():
    invoke("evidence", "--evidence", "nowhere", status=2)
    invoke("evidence", "--generation", "M9", status=2)


# -- decide -----------------------------------------------------------------------------


def test_decide_agrees():
    text = invoke("decide")
    assert text.startswith("Branch: generation-discriminator")
    for part in ("M2", "inferred", "Conflict: M5, Gemma 4 31B", "0.85x", "agree with the evidence"):
        assert part in " ".join(text.split())
    for name in ("m1ultra-31b-2026-09-04", "m3ultra-31b-2026-08-20", "2026-08-20"):
        assert name in text


def test_decide_as_json():
    found = as_json("decide")
    assert found["branch"]["name"] == "generation-discriminator"
    assert found["table"] == dict(GATE_TABLE)
    assert (found["agrees"], found["disagreements"]) == (True, [])
    says = {s["name"]: s["supports"] for s in found["generations"] if s["name"] in GATE_TABLE}
    assert says == dict(GATE_TABLE)
    [conflict] = found["conflicts"]
    assert (conflict["subject"], len(conflict["losses"])) == ("M5", 1)


def test_decide_ends_with_1_when_the_evidence_disagrees(m1_gains):
    text = invoke("decide", "--evidence", str(m1_gains), status=1)
    assert "The evidence disagrees" in text
    assert "m1-gains" in text
    found = as_json("decide", "--evidence", str(m1_gains), status=1)
    assert found["agrees"] is False
    assert {("contradicted", "M1"), ("contradicted", "M2")} <= {
        (item["kind"], item["subject"]) for item in found["disagreements"]
    }


# -- audit and predictions --------------------------------------------------------------


def test_audit():
    text = invoke("audit")
    for part in ("stale (", "inferred (2)", "missing (", "M2, any", "conflict (1)", "findings: "):
        assert part in text
    found = as_json("audit")
    assert {"stale", "undated", "inferred", "single-run", "spread", "width", "conflict",
            "missing", "unpublishable"} == {item["kind"] for item in found}  # fmt: skip
    assert all(item["settle"] for item in found)


def test_predictions():
    text = " ".join(invoke("predictions").split())
    assert "m1ultra-31b-block-4: failed (not firm)" in text
    assert "0.82 to 1.11 failed 0.75 0.07 below m1ultra-31b-2026-09-04" in text
    assert "3.6 +/- 0.2 held 3.45 inside" in text
    found = as_json("predictions")
    assert [item["id"] for item in found] == [item.id for item in load_predictions()]
    assert (found[0]["verdict"], found[0]["firm"]) == ("failed", False)


# -- explain ----------------------------------------------------------------------------

BATCH_CAPABLE = {
    "Apple M1 Ultra": (False, "host", "m1ultra-31b-2026-09-04"),
    "Apple M2 Max": (False, "host", "m1ultra-31b-2026-09-04"),
    "Apple M3 Ultra": (True, "host", "m3ultra-31b-2026-08-20"),
    "Apple M4 Max": (True, "host", "m3ultra-31b-2026-08-20"),
    "Apple M5 Max": (True, "host", "m5max-31b-exact-2026-09-26"),
    "Apple M6": (False, "unmeasured", "m5max-31b-exact-2026-09-26"),
    "Apple processor": (False, "unmeasured", None),
    "NVIDIA H200": (False, "unmeasured", "gb10-31b-exact-2026-10-07"),
    "NVIDIA GB10": (False, "unmeasured", "gb10-31b-exact-2026-10-07"),
    "cpu": (False, "unmeasured", None),
}
"""Verdict, rule and one record that is cited, without a kernel profile."""


@pytest.mark.parametrize("host", BATCH_CAPABLE)
@pytest.mark.parametrize("words", [[], ["--batch-capable"], ["--target", "Gemma 4 31B"]])
def test_explain_a_batch_capable_target(host, words):
    run, source, cited = BATCH_CAPABLE[host]
    found = as_json("explain", "--host", host, *words)
    assert (found["decision"]["run"], found["decision"]["source"]) == (run, source)
    evidence = {tuple(item) for step in found["steps"] for item in step["evidence"]}
    dates = {record.id: record.date for record in RECORDS}
    assert (cited, dates.get(cited)) in evidence if cited else not evidence
    if source == "unmeasured":
        assert "mlxcel probe kernels" in found["decision"]["reason"]


@pytest.mark.parametrize("host", BATCH_CAPABLE)
@pytest.mark.parametrize("words", [["--not-batch-capable"], ["--target", "Gemma 4 12B"]])
def test_explain_a_target_that_cannot_batch(host, words):
    found = as_json("explain", "--host", host, *words)
    assert (found["decision"]["run"], found["decision"]["source"]) == (True, "not-batchable")
    [evidence] = [step for step in found["steps"] if step["name"] == "evidence"]
    assert bool(evidence["evidence"]) == (host not in ("cpu", "Apple processor"))


@pytest.mark.parametrize("host", BATCH_CAPABLE)
@pytest.mark.parametrize(("value", "run"), [("0", False), ("1", True)])
def test_explain_with_the_override(host, value, run):
    found = as_json("explain", "--host", host, MLXCEL_ENABLE_MTP_B1=value)
    assert (found["decision"]["run"], found["decision"]["source"]) == (run, "override")
    assert f"MLXCEL_ENABLE_MTP_B1={value}" in found["decision"]["reason"]


def test_explain_reads_the_other_settings():
    how = {"MLXCEL_MTP_ADAPTIVE": "0", "MLXCEL_MTP_EXACTNESS": "bitwise"}
    text = invoke("explain", "--host", "Apple M3 Ultra", **how)
    assert "MLXCEL_MTP_ADAPTIVE is off" in text
    assert "bitwise required" in text


@pytest.mark.parametrize(("kernels", "run"), [("wide", True), ("narrow", False)])
def test_explain_as_if_the_kernels_had_been_measured(kernels, run):
    found = as_json("explain", "--host", "Apple M6", "--kernels", kernels)
    assert (found["decision"]["run"], found["decision"]["source"]) == (run, "host")


def test_explain_as_a_table():
    text = " ".join(invoke("explain", "--host", "Apple M1 Ultra").split())
    assert text.startswith("Apple M1 Ultra, a batch-capable target: decline")
    assert "> gate decline" in text
    assert "m1ultra-31b-2026-09-04 (2026-09-04)" in text


def test_explain_says_which_hosts_it_understands():
    result = CliRunner().invoke(main, ["gate", "explain", "--host", "Aple M3 Max"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mlxcel: error: --host 'Aple M3 Max' is no host")
    assert "did you mean 'Apple M3 Max'?" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        ("M3 Ultra", "Apple M3 Ultra", "known"),
        ("applegpu_g15d", "applegpu_g15d", "known"),
        ("Apple M6 Max", "Apple M6 Max", "newer"),
        ("cuda", "cuda", "unknown"),
        ("AMD EPYC 9B14", "AMD EPYC 9B14", "unknown"),
    ],
)
def test_explain_names_that_mean_something(host, name, status):
    chip = as_json("explain", "--host", host)["chip"]
    assert (chip["name"], chip["status"]) == (name, status)


def test_explain_this_host():
    found = as_json("explain")
    assert found["host"]
    assert found["decision"]["reason"]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["--host", " "], {}),
        (["--host", "Foo"], {}),
        (["--host", "Apple M3"], {"MLXCEL_ENABLE_MTP_B1": ""}),
        (["--host", "Apple M3"], {"MLXCEL_MTP_ADAPTIV": "1"}),
        (["--kernels", "some"], {}),
        (["--probe"], {}),
        (["--probe", "--target", "demo", "--host", "Apple M6"], {}),
        (["--probe", "--target", "demo", "--kernels", "wide"], {}),
        (["--probe", "--target", "no/such/model/anywhere"], {}),
    ],
)
def test_explain_refuses(words, environ):
    assert invoke("explain", *words, status=2, **environ) == ""
