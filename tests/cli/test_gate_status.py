"""``mlxcel gate status``: what is settled and forbidden here, whatever the files hold."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from mlxcel.cli import gate_status, main
from mlxcel.config import Settings
from mlxcel.decide.estimate import Estimate
from mlxcel.decide.exactness import ExactnessRecord
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.rows import RowRule
from mlxcel.decide.verdict import PairingNames, Verdict, VerdictKey, zone_of
from mlxcel.engine.exactness import probe_key
from mlxcel.engine.exactness_store import TARGET_NAME
from mlxcel.engine.exactness_store import store_of as exactness_store
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.errors import LoadError
from mlxcel.hardware.host import Sources, describe
from mlxcel.hardware.profile_store import digest, host_facts
from mlxcel.models.lean import LEAN_VERSION
from tests.support import tiny

HOST = describe()
HERE = digest(host_facts(HOST))
NAMES = PairingNames(target="SmolLM2", drafter="demo", host=f"{HOST.chip} ({HOST.backend})")
VERSIONS = {name: Sources().version(name) or "none" for name in ("mlx", "mlxcel")}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path))
    return tmp_path


def settle(cache, speedup=1.8, names=NAMES, age=0.0, **changes):
    """Store a verdict as the engine does."""
    fields = {"target": "0", "drafter": "d" * 64, "host": HERE, "width": 4,
              "weights": f"dense float32 lean {LEAN_VERSION}", "kernel": "wide",
              "round_loop": ROUND_LOOP_VERSION, "numerics": "fast"}  # fmt: skip
    key = VerdictKey(**(fields | VERSIONS | changes))
    found = Estimate(emitted_per_verify=2.0, classic_seconds=1.0, round_seconds=2 / speedup,
                     samples=4, rounds=20)  # fmt: skip
    verdict = Verdict(zone=zone_of(found), estimate=found, settled_at=time.time() - age)
    VerdictStore(cache).write(key, verdict.to_json(key, names))
    return VerdictStore(cache).path(key)


def probe(cache, level="divergent", width=4, host=HOST):
    """Keep a result of the exactness probe as the engine does."""
    record = ExactnessRecord(
        level=level, width=width, reason="as a test says", draws=3,
        first_draw="a" if level == "divergent" else "",
    )  # fmt: skip
    model = tiny.loaded(tiny.llama_model())  # fingerprint 0, dense float32
    key = probe_key(model, width, Settings(), rule=RowRule(), host=host)
    return exactness_store(cache).write(key, record.to_dict() | {TARGET_NAME: "SmolLM2"})


def status(*words, **environ):
    result = CliRunner().invoke(main, ["gate", "status", *words], env={"COLUMNS": "250"} | environ)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def as_json(**environ):
    return json.loads(status("--json", **environ))


def test_nothing_is_settled(cache):
    assert "No pairing has settled yet" in status()
    found = as_json()
    assert found["folder"] == str(cache / "mtp-policy")
    assert (found["pairings"], found["vetoes"], found["damaged"]) == ([], [], [])


def test_every_state_by_name_with_age_and_when_it_is_due(cache):
    settle(cache, 1.8, age=7300)
    settle(cache, 0.7, weights=f"stored float32 lean {LEAN_VERSION}")
    settle(cache, 1.2, width=3)
    settle(cache, 1.8, mlx="0.1")
    settle(cache, 1.8, host="0" * 32, names=replace(NAMES, host="Apple M3 Ultra (metal)"))
    settle(cache, 1.8, width=6, names=None)
    found = as_json()
    assert sorted(item["state"] for item in found["pairings"]) == [
        "declined", "elsewhere", "left to the gate", "outdated", "runs", "runs",
    ]  # fmt: skip
    assert found["host"] == NAMES.host
    first = next(item for item in found["pairings"] if item["age_seconds"] > 7000)
    assert first["names"] == {"target": "SmolLM2", "drafter": "demo", "host": NAMES.host}
    assert first["due_at"] == first["verdict"]["settled_at"] + 7 * 86400
    text = " ".join(status().split())
    for part in (
        "SmolLM2 + demo", "1.80x", "0.70x", "left to the gate", "mlx 0.1, now", "2.0 h ago",
        "measured again on drift, at the latest 20", "Apple M3 Ultra (metal)", "elsewhere",
        "0 + dddddddddddd", "not probed here",
    ):  # fmt: skip
        assert part in text


def test_what_exactness_says_is_shown_and_outranks(cache):
    settle(cache)
    probe(cache, "token")
    item = as_json()["pairings"][0]
    assert (item["state"], item["exactness"]["record"]["level"]) == ("runs", "token")
    assert "exactness: token, not vetoed (token required)" in " ".join(status().split())
    strict = as_json(MLXCEL_MTP_EXACTNESS="bitwise")["pairings"][0]
    assert (strict["state"], strict["exactness"]["vetoed"]) == ("vetoed", True)
    probe(cache, "divergent")
    assert as_json()["pairings"][0]["state"] == "vetoed"
    assert "the exactness probe declined: as a test says" in " ".join(status().split())
    assert as_json()["vetoes"] == []  # it is told once


def test_a_veto_without_a_verdict_is_told_too(cache):
    probe(cache, "divergent")
    probe(cache, "token", width=2)
    probe(cache, "divergent", width=8, host=replace(HOST, chip="another"))
    [veto] = as_json()["vetoes"]
    assert (veto["target"], veto["width"]) == ("SmolLM2", 4)
    assert "SmolLM2 + any drafter" in status()
    assert as_json(MLXCEL_MTP_EXACTNESS="off")["vetoes"] == []


def test_settings_that_outrank_are_told(cache):
    settle(cache)
    text = status(MLXCEL_ENABLE_MTP_B1="0", MLXCEL_MTP_ADAPTIVE="0")
    assert "MLXCEL_ENABLE_MTP_B1 is off: it outranks" in text
    assert "MLXCEL_MTP_ADAPTIVE is off" in text


def test_a_table_fits_its_terminal(cache):
    settle(cache, names=replace(NAMES, target="a-model-with-a-rather-long-name-4bit"))
    probe(cache)
    assert max(map(len, status(COLUMNS="80").splitlines()[1:])) <= 80


DAMAGE = {
    "a.json": b"",
    "b.json": b"\xff\xfe{",
    "d.json": b'{"version": 1',
    "e.json": b"[" * 100_000,
    "f.json": b'{"version": null, "key": "' + b"x" * 5000 + b'"}',
    "g.json": b" " * (2 << 20),
    "h.json": b"null",
    "i\n\xff.json": b"{}",
}


@pytest.mark.parametrize("folder", ["mtp-policy", "exactness"])
def test_damaged_files_are_one_line_each_and_break_nothing(cache, folder):
    good = settle(cache)
    where = cache / folder
    where.mkdir(exist_ok=True)
    for name, content in DAMAGE.items():
        (where / name).write_bytes(content)
    (where / "j.json").mkdir()
    (where / "k.json").symlink_to(where / "k.json")
    os.mkfifo(where / "l.json")
    (where / "m.tmp").write_text("not looked at")
    found = as_json()
    assert [item["name"] for item in found["pairings"]] == [good.name]
    files = {item["file"] for item in found["damaged"]}
    assert len(files) == len(found["damaged"]) == len(DAMAGE) + 3
    assert f"{folder}/a.json" in files
    lines = status().splitlines()
    for file in files:
        [line] = [line for line in lines if line.startswith(f"{file}: ")]
        assert len(line) < 300


def test_folders_that_are_files_or_hidden_break_nothing(cache):
    (cache / "mtp-policy").write_text("a file")
    (cache / "exactness").write_text("a file")
    assert {item["file"] for item in as_json()["damaged"]} == {"mtp-policy", "exactness"}
    assert "mtp-policy: not readable" in status()


def test_without_mlx_whose_they_are_is_left_open(cache, monkeypatch):
    def nothing():
        raise LoadError("mlx is not installed")

    monkeypatch.setattr(gate_status, "describe", nothing)
    settle(cache, host="0" * 32)
    assert as_json()["pairings"][0]["state"] == "runs"
