"""A campaign around the protocol: guards, provenance, the record's words about itself."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mlxcel.bench.campaign import Opened, run_campaign
from mlxcel.bench.guarded import unguarded
from mlxcel.bench.measured import record_id, subject_of
from mlxcel.bench.protocol import Plan
from mlxcel.bench.provenance import (
    commit_of,
    public_environment,
    record_host,
    shown_command,
)
from mlxcel.bench.verify import verify_record
from mlxcel.decide.audit import audit
from mlxcel.decide.matrix import decide
from mlxcel.errors import ConfigError, EngineError
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import (
    FACTS,
    MACHINE,
    QUIET,
    FixedGuards,
    campaign,
    measured_record,
)

PLAN = Plan(prompts={"code": "c"}, widths=(4,), tokens=41)


def test_the_record_of_a_steady_host():
    record = measured_record(SimulatedHost(noise=0.002), PLAN)
    found = record.provenance
    assert found is not None
    assert (record.id, record.origin, record.date) == (
        "test-head-test-cpu-2026-11-30-210500", "measured", "2026-11-30",
    )  # fmt: skip
    assert (record.protocol, record.exactness, record.tool) == (
        "guarded", "exact", "mlxcel bench speculative",
    )  # fmt: skip
    assert (record.pairing.target, record.pairing.drafter, record.pairing.kind) == (
        "target-4bit", "head", "mtp",
    )  # fmt: skip
    assert record.pairing.governed
    assert record.versions == found.versions == (("mlx", "0.32.4"), ("mlxcel", "0.1.0"))
    assert (found.started, found.memory_bytes) == ("2026-11-30T21:05:00Z", 16 * 2**30)
    assert found.environment == (("OMP_NUM_THREADS", "2"),)
    assert found.guards == QUIET
    assert found.kernel is not None
    assert (found.kernel.form, found.kernel.verdict) == ("dense float32", "wide")
    [row] = record.rows
    assert row.publishable
    assert row.speedup == pytest.approx(2.5 / 1.4, rel=0.01)
    assert verify_record(record) == []


def test_loading_and_all_runs_are_inside_the_guards():
    guards = FixedGuards(QUIET)
    host = SimulatedHost()
    inside = []

    def load() -> Opened:
        inside.append(guards.inside)
        return Opened(runner=host, machine=MACHINE, facts=FACTS)

    run_campaign(campaign(host, PLAN, guards=lambda: guards), load)
    assert inside == [True]
    assert not guards.inside


def test_guards_are_left_when_the_engine_fails():
    guards = FixedGuards(QUIET)

    def load() -> Opened:
        raise EngineError("out of memory")

    with pytest.raises(EngineError):
        run_campaign(campaign(SimulatedHost(), PLAN, guards=lambda: guards), load)
    assert not guards.inside


@pytest.mark.parametrize("error", [EngineError("out of memory"), KeyboardInterrupt()])
def test_prompts_that_were_finished_are_kept(error):
    class Failing(SimulatedHost):
        def run(self, prompt, width, tokens):
            if prompt == "p" and len(self.asked) > 24:
                raise error
            return super().run(prompt, width, tokens)

    host = Failing()
    plan = Plan(prompts={"code": "c", "prose": "p"}, widths=(4,), tokens=41)
    opened = Opened(runner=host, machine=MACHINE, facts=FACTS)
    ended = run_campaign(campaign(host, plan, notes="quick run"), lambda: opened)
    assert ended.failure is error
    assert [row.prompt for row in ended.record.rows] == ["code"]
    note = f"quick run; ended early ({type(error).__name__}): prompts are missing"
    assert ended.record.notes == note
    assert verify_record(ended.record) == []


def test_a_failure_in_the_first_prompt_leaves_no_record():
    class Failing(SimulatedHost):
        def run(self, prompt, width, tokens):
            raise EngineError("out of memory")

    host = Failing()
    opened = Opened(runner=host, machine=MACHINE, facts=FACTS)
    with pytest.raises(EngineError):
        run_campaign(campaign(host, PLAN), lambda: opened)


def test_without_guards_the_record_says_so():
    record = measured_record(SimulatedHost(), PLAN, guards=unguarded)
    [row] = record.rows
    assert record.protocol == "unguarded"
    assert row.publishable is False
    assert row.reasons is not None
    assert all(reason.startswith("not guarded: ") for reason in row.reasons)
    assert verify_record(record) == []


def test_a_tripped_guard_spoils_every_row_but_the_protocol_stays():
    tripped = {**QUIET, "contention": {"ran": True, "passed": False, "reason": "a burner, 99 %"}}
    record = measured_record(SimulatedHost(), PLAN, guards=lambda: FixedGuards(tripped))
    assert record.protocol == "guarded"
    assert record.rows[0].reasons == ("the contention watch tripped: a burner, 99 %",)


def test_rows_that_are_not_publishable_decide_nothing():
    good = measured_record(SimulatedHost(), PLAN, name="good")
    bad = measured_record(SimulatedHost(), PLAN, name="bad", guards=unguarded)
    subject = decide([good]).subject("Test CPU")
    assert subject is not None
    assert subject.verdict == "measured gain"
    assert decide([bad]).subject("Test CPU") is None
    kinds = {finding.kind: finding for finding in audit([good, bad])}
    assert kinds["unpublishable"].evidence == ("bad",)
    assert "code at width 4: not guarded" in kinds["unpublishable"].message


def test_what_is_not_bitwise_is_not_called_exact():
    facts = FACTS | {"exactness": [("bitwise", "width 2: equal"), ("token", "width 4: near")]}
    subject = subject_of("test", "head", facts)
    assert (subject.exactness.level, subject.exactness.reason) == ("token", "width 4: near")
    host = SimulatedHost()
    opened = Opened(runner=host, machine=MACHINE, facts=facts)
    record = run_campaign(campaign(host, PLAN), lambda: opened).record
    assert record.exactness == "unknown"


@pytest.mark.parametrize(
    ("kind", "word"),
    [("mtp", "mtp"), ("assistant", "mtp"), ("lookup", "prompt-lookup"), ("draft", "draft-model")],
)
def test_drafters_by_the_words_of_records(kind, word):
    assert subject_of("test", "head", FACTS | {"drafter_kind": kind}).pairing.kind == word


def test_a_drafter_without_a_name_in_records():
    with pytest.raises(ConfigError, match="kind 'scripted'"):
        subject_of("test", "head", FACTS | {"drafter_kind": "scripted"})


@pytest.mark.parametrize(
    ("changes", "chip", "generation"),
    [
        ({"backend": "metal", "chip": "Apple M3 Ultra"}, "Apple M3 Ultra", "M3"),
        ({"backend": "cpu", "chip": "Apple M3 Ultra"}, "CPU Apple M3 Ultra", None),
        ({"backend": "cuda", "chip": "NVIDIA H200"}, "NVIDIA H200", None),
    ],
)
def test_hosts_as_records_name_them(changes, chip, generation):
    found = record_host(replace(MACHINE, **changes))
    assert (found.chip, found.generation, found.memory_gb) == (chip, generation, 17.2)


def test_on_a_gpu_its_own_memory_counts():
    machine = replace(MACHINE, backend="cuda", gpu_memory_bytes=140 * 10**9)
    assert record_host(machine).memory_gb == 140.0


def test_no_secret_and_no_folder_gets_into_a_record():
    environ = {"HF_TOKEN": "s", "MLXCEL_CACHE_DIR": "/somewhere/else", "OMP_NUM_THREADS": "2"}
    assert public_environment(environ) == (
        ("MLXCEL_CACHE_DIR", "else"), ("OMP_NUM_THREADS", "2"),
    )  # fmt: skip
    words = ["mlxcel", "-m", "/somewhere/model", "--output=/somewhere/out", "--tokens", "64", ""]
    assert shown_command(words) == (
        "mlxcel", "-m", "model", "--output=out", "--tokens", "64",
    )  # fmt: skip


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_the_commit_of_a_source_folder(tmp_path):
    assert commit_of(tmp_path) == (None, None)
    git(tmp_path, "init")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    commit, dirty = commit_of(tmp_path)
    assert len(commit or "") == 40
    assert dirty is False
    (tmp_path / "a").write_text("b")
    assert commit_of(tmp_path) == (commit, True)
    (tmp_path / "inner").mkdir()
    assert commit_of(tmp_path / "inner") == (None, None), "an environment inside a repository"


def test_ids_of_records():
    assert record_id("Gemma 4 31B", "Apple M3 Ultra", "2026") == "gemma-4-31b-apple-m3-ultra-2026"
    assert record_id("AMD EPYC (tm)", "a.b") == "amd-epyc-tm-a.b"
    with pytest.raises(ConfigError, match="no id"):
        record_id("()")
