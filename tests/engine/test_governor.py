"""The gate through the real dispatch path: who decides, what is remembered, what is vetoed."""

from __future__ import annotations

import itertools
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.decide.exactness import VetoState, unprobed
from mlxcel.decide.gate import mtp_b1_decision
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.verdict import PairingNames, VerdictKey
from mlxcel.engine.drafters import LookupDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.governor import Facts, Governor
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.errors import ExactnessError, LoadError
from mlxcel.hardware.profile_store import ProfileStore
from mlxcel.types import Completion, Request, SamplingParams
from tests.support import tiny
from tests.support.running import one

PROMPT = (3, 5, 7, 9, 11)
KEY = VerdictKey(
    target="t", drafter="d", host="h", width=4, weights="dense float32", kernel="wide", mlx="1",
    mlxcel="1", round_loop=ROUND_LOOP_VERSION, numerics="fast",
)  # fmt: skip


class World:
    """An engine on a host of our choosing; seconds are counted in rounds, not measured."""

    def __init__(
        self, tmp_path: Path, *, wide: bool | None = True, veto: str = "", accepts: int = 3,
        key: VerdictKey = KEY, names: PairingNames | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.settings = Settings(cache_dir=tmp_path, **settings)
        self.model = tiny.loaded(tiny.llama_model(0))
        self.asked: list[int] = []
        self.veto, self.now, self.ticks = veto, 1.8e9, 0.0
        override = self.settings.enable_mtp_b1
        env = None if override is None else ("on" if override else "off")
        static = mtp_b1_decision(env, True, wide, host="this test")
        self.governor = Governor(
            lambda: Facts(
                static, lambda width: replace(key, width=width), names or PairingNames()
            ),
            self._probe, VerdictStore(tmp_path), self.settings, clock=lambda: self.now,
        )  # fmt: skip
        answer = self._classic()
        drafter = ScriptedDrafter({PROMPT: answer}, [accepts], tiny.VOCAB)
        self.engine = Engine(
            self.model, drafter, self.settings, governor=self.governor, clock=self._tick
        )

    def _probe(self, width: int) -> VetoState:
        self.asked.append(width)
        return VetoState(
            vetoed=bool(self.veto), required="token", reason=self.veto,
            record=unprobed(width, "a test"),
        )  # fmt: skip

    def _tick(self) -> float:
        self.ticks += 1e-3
        return self.ticks

    def _classic(self) -> list[int]:
        return list(self._run(Engine(self.model, None, self.settings), "off").token_ids)

    def _run(self, engine: Engine, speculation: str, tokens: int = 48) -> Completion:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        engine.add(
            Request(prompt_ids=PROMPT, params=params, speculation=speculation)  # type: ignore[arg-type]
        )
        found = None
        while engine.busy:
            for chunk in engine.step():
                found = chunk.completion or found
        assert found is not None
        return found

    def ask(self, speculation: str = "auto", tokens: int = 48) -> Completion:
        return self._run(self.engine, speculation, tokens)


def test_narrow_declines_and_wide_runs_without_the_policy(tmp_path: Path) -> None:
    declined = World(tmp_path, wide=False, mtp_adaptive=False).ask()
    assert (declined.decision.run, declined.decision.source) == (False, "gate")
    assert "narrow quantized projections" in declined.decision.reason
    assert not declined.speculation.ran
    ran = World(tmp_path, wide=True, mtp_adaptive=False).ask()
    assert (ran.decision.run, ran.decision.source, ran.decision.width) == (True, "gate", 4)
    assert ran.speculation.ran
    assert ran.token_ids == declined.token_ids
    unknown = World(tmp_path, wide=None, mtp_adaptive=False).ask()
    assert not unknown.decision.run
    assert "mlxcel probe kernels" in unknown.decision.reason


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_the_override_wins_in_both_directions(tmp_path: Path, wide: bool, adaptive: bool) -> None:
    for override in (True, False):
        world = World(tmp_path, wide=wide, enable_mtp_b1=override, mtp_adaptive=adaptive)
        found = world.ask()
        assert (found.decision.run, found.decision.source) == (override, "override")
        assert found.speculation.ran == override
    assert not list(tmp_path.glob("mtp-policy/*"))  # forced is never stored as measured


def test_a_veto_outranks_everything_before_any_draft(tmp_path: Path) -> None:
    for more in ({}, {"enable_mtp_b1": True}, {"mtp_adaptive": False}):
        world = World(tmp_path, veto="rows differ at position 2", **more)
        found = world.ask()
        assert (found.decision.run, found.decision.source) == (False, "exactness")
        assert "rows differ at position 2" in found.decision.reason
        assert found.speculation.proposed == 0
        assert world.asked == [4]
        world.ask()
        assert world.asked == [4]  # remembered


def test_insisting_fails_where_it_is_not_exact(tmp_path: Path) -> None:
    world = World(tmp_path, veto="rows differ")
    found = world.ask("on")
    assert found.finish_reason == "error"
    assert found.error is not None
    assert "not exact here: rows differ" in found.error
    with pytest.raises(ExactnessError, match="not exact here"):
        raise found.failure()
    assert world.ask("off").finish_reason == "length"  # others are not touched


def test_insisting_spares_gate_and_policy(tmp_path: Path) -> None:
    world = World(tmp_path, wide=False, mtp_adaptive=False)
    found = world.ask("on")
    assert (found.decision.run, found.decision.source) == (True, "request")
    assert found.speculation.ran


def test_classic_requests_probe_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    found = world.ask("off")
    assert found.decision.source == "request"
    assert world.asked == []


def test_it_profiles_then_settles_and_remembers(tmp_path: Path) -> None:
    """Rounds of this test's clock all take the same time, so four tokens a round must pay."""
    world = World(tmp_path)
    reasons = [world.ask().decision.reason for _ in range(5)]
    assert reasons[0].startswith("profiling, 0 of 4")
    assert "measured" in reasons[4]
    assert "enables" in reasons[4]
    assert len(list(tmp_path.glob("mtp-policy/*.json"))) == 1
    again = World(tmp_path).ask().decision
    assert again.reason == reasons[4]
    for change in ({"weights": "stored"}, {"mlx": "2"}, {"target": "u"}, {"kernel": "narrow"}):
        other = World(tmp_path, key=replace(KEY, **change)).ask().decision
        assert other.reason.startswith("profiling, 0 of 4")
    wider = World(tmp_path, default_width=6).ask().decision
    assert wider.reason.startswith("profiling, 0 of 4")


def test_a_drafter_that_is_always_wrong_settles_on_classic(tmp_path: Path) -> None:
    world = World(tmp_path, accepts=0)
    found = [world.ask() for _ in range(6)]
    assert found[0].decision.run
    assert not found[5].decision.run
    assert "declines" in found[5].decision.reason
    assert found[5].token_ids == found[0].token_ids


def test_probe_rounds_change_no_token_and_are_classic(tmp_path: Path) -> None:
    world = World(tmp_path)
    profiled, forced = world.ask(), World(tmp_path, enable_mtp_b1=True).ask()
    assert profiled.token_ids == forced.token_ids
    assert profiled.speculation.rounds > forced.speculation.rounds
    assert profiled.speculation.width_min == 1


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', "[" * 100_000, "\x00"])
def test_broken_verdicts_are_profiled_again(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    path = VerdictStore(tmp_path).path(KEY)
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.INFO, logger="mlxcel"):
        found = world.ask()
    assert found.decision.reason.startswith("profiling, 0 of 4")
    assert str(path) in caplog.text


def test_short_answers_say_what_their_rounds_were(tmp_path: Path) -> None:
    found = World(tmp_path).ask(tokens=3)
    assert found.decision.run
    assert not found.speculation.ran
    assert found.speculation.reason == "all its rounds were classic steps, timed for the policy"


def test_an_old_verdict_is_measured_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(5):
        world.ask()
    later = World(tmp_path)
    later.now += 8 * 86400
    assert later.ask().decision.reason.startswith("profiling, 0 of 4")


def test_a_folder_that_cannot_be_written_keeps_the_verdict_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mtp-policy").write_text("a file, not a folder")
    world = World(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = [world.ask() for _ in range(5)]
    assert "enables" in found[4].decision.reason
    assert "stays in memory" in caplog.text


def test_what_goes_wrong_in_deciding_ends_that_request_only(tmp_path: Path) -> None:
    world = World(tmp_path)

    def broken(width: int) -> Any:
        raise LoadError("no projection could be timed")

    world.governor.should_run = broken  # type: ignore[method-assign,assignment]
    found = world.ask()
    assert found.finish_reason == "error"
    assert "no projection could be timed" in str(found.error)
    assert world.ask("off").finish_reason == "length"


def test_what_could_not_be_measured_is_not_kept(tmp_path: Path) -> None:
    world = World(tmp_path, wide=False)
    for _ in range(70):
        world.ask(tokens=2)
    assert "could not be measured" in world.ask().decision.reason
    assert not list(tmp_path.glob("mtp-policy/*.json"))
    assert World(tmp_path, wide=False).ask().decision.reason.startswith("profiling, 0 of 4")


def test_the_snapshot_names_the_pairing_and_follows_it(tmp_path: Path) -> None:
    names = PairingNames(target="t", drafter="d", host="h")
    world = World(tmp_path, names=names)
    assert world.governor.snapshot() == []
    world.ask()
    [found] = world.governor.snapshot()
    assert (found["state"], found["width"], found["samples_remaining"]) == ("profiling", 4, 3)
    assert (found["target"], found["drafter"], found["host"]) == ("t", "d", "h")
    assert (found["settled_at"], found["due_at"], found["veto"]) == (None, None, None)
    for _ in range(4):
        world.ask()
    [found] = world.governor.snapshot()
    assert (found["state"], found["zone"]) == ("settled", "enable")
    assert found["due_at"] == found["settled_at"] + 7 * 86400
    assert json.loads(json.dumps(found)) == found
    [file] = tmp_path.glob("mtp-policy/*.json")
    assert json.loads(file.read_text())["names"] == {"target": "t", "drafter": "d", "host": "h"}
    vetoed = World(tmp_path / "other", veto="rows differ")
    vetoed.ask()
    [found] = vetoed.governor.snapshot()
    assert (found["state"], found["veto"]) == ("exactness_declined", "rows differ")


def test_the_snapshot_shows_gate_and_probe_whoever_decides(tmp_path: Path) -> None:
    for wide, adaptive in itertools.product((True, False), repeat=2):
        world = World(tmp_path, wide=wide, mtp_adaptive=adaptive)
        world.ask()
        [found] = world.governor.snapshot()
        assert found["state"] == ("profiling" if adaptive else "static")
        assert found["run"] == (adaptive or wide)
        assert (found["gate"]["run"], found["gate"]["source"]) == (wide, "host")
        assert (found["exactness"] is not None) == found["run"]  # a decline asks no probe
        if not adaptive:
            assert (found["reason"], found["width"]) == (found["gate"]["reason"], 4)


def test_a_veto_and_an_override_without_the_policy(tmp_path: Path) -> None:
    world = World(tmp_path, veto="rows differ", mtp_adaptive=False)
    world.ask()
    [found] = world.governor.snapshot()
    assert (found["state"], found["run"]) == ("exactness_declined", False)
    assert (found["veto"], found["reason"]) == (
        "rows differ", "the exactness probe declined: rows differ",
    )  # fmt: skip
    assert (found["gate"]["run"], found["exactness"]["vetoed"]) == (True, True)
    world = World(tmp_path, wide=False, enable_mtp_b1=True, mtp_adaptive=False)
    world.ask()
    [found] = world.governor.snapshot()
    assert (found["state"], found["run"], found["gate"]["source"]) == ("forced", True, "override")


@pytest.mark.parametrize("folder", ["mtp-policy", "exactness"])
def test_a_pipe_in_place_of_a_file_stops_nobody(tmp_path: Path, folder: str) -> None:
    """Opening it for reading would wait for a writer."""
    verdicts, records = VerdictStore(tmp_path), ProfileStore(tmp_path / "exactness", 1)
    path = verdicts.path(KEY) if folder == "mtp-policy" else records.path({"a": 1})
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert (verdicts.read(KEY) if folder == "mtp-policy" else records.read({"a": 1})) is None


def test_a_short_profiled_answer_says_what_its_last_round_was(tmp_path: Path) -> None:
    found = World(tmp_path).ask(tokens=6)
    assert not found.speculation.ran
    assert "classic steps" in found.speculation.reason
    assert "single token" in found.speculation.reason


def test_one_round_without_drafts_is_not_called_a_policys_step() -> None:
    engine = Engine(tiny.loaded(tiny.llama_model()), LookupDrafter(4))
    found = one(engine, PROMPT, 4, max_tokens=2)
    assert found.speculation.rounds == 1
    assert found.speculation.reason == "the drafter had nothing to propose"
