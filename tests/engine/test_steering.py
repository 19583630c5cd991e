"""The width controller in the engine: who it works for, what it may choose, what it learns."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.decide.exactness import VetoState, unprobed
from mlxcel.decide.verdict import VerdictKey
from mlxcel.decide.width import WidthController
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.exactness import ProbeInterrupted
from mlxcel.engine.meter import BurstMeter
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.engine.steering import FOLDER
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.engine.worker import EngineThread
from mlxcel.types import Completion, Request, SamplingParams
from tests.support import drafters, tiny
from tests.support.clockwork import KEY, MACHINES, Clockwork, steered_engine
from tests.support.running import drain, run

PROMPT = (3, 5, 7, 9, 11)
ALL = tuple(range(2, 9))


def flat(width: int) -> float:
    """Wide blocks cost almost nothing."""
    return 1.0 + 0.01 * width


def steep(width: int) -> float:
    """A round costs what its rows cost."""
    return 0.1 + 0.9 * width


class World:
    """An engine on a machine of our choosing."""

    def __init__(
        self, folder: Path, cost: Callable[[int], float] = flat, *, exact: Sequence[int] = ALL,
        inexact: Sequence[int] = (), drafter: str = "self", machine: str = "eager",
        key: VerdictKey = KEY, seed: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        given = {"mtp_adaptive": False, "max_width": 8, "length_step": 64, "max_rows": 3}
        self.settings = Settings(cache_dir=folder, **(given | settings))
        self.model = tiny.loaded(tiny.llama_model(seed))
        self.exact, self.inexact = set(exact), set(inexact)
        self.probed: list[int] = []
        self.clock = Clockwork(cost, machine)
        made = self._drafter(drafter)
        self.engine = steered_engine(
            self.model, made, self.settings, self.clock, folder,
            probe=self._probe, known=self._known, key=key,
        )  # fmt: skip
        governor = self.engine.scheduler.governor
        assert governor is not None
        self.governor = governor

    def _drafter(self, name: str) -> Drafter:
        if name != "scripted":
            return drafters.make(name, self.model, self.settings)
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        answer = run(
            Engine(self.model, None, self.settings), Request(prompt_ids=PROMPT, params=params)
        )[0]
        return ScriptedDrafter({PROMPT: answer.token_ids}, [7], tiny.VOCAB)

    def _known(self, width: int) -> VetoState | None:
        if width in self.inexact:
            return self._state(width, "rows differ")
        return self._state(width, "") if width in self.exact else None

    def _probe(self, width: int, interrupted: Callable[[], bool] = bool) -> VetoState:
        if interrupted():
            raise ProbeInterrupted
        self.probed.append(width)
        return self._known(width) or self._state(width, "")

    def _state(self, width: int, veto: str) -> VetoState:
        return VetoState(
            vetoed=bool(veto), required="token", reason=veto, record=unprobed(width, "a test")
        )

    def ask(
        self, tokens: int = 200, speculation: str = "auto", width: int | None = None, **params: Any
    ) -> Completion:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, **params)
        request = Request(
            prompt_ids=PROMPT, params=sampling, width=width, speculation=speculation,  # type: ignore[arg-type]
        )  # fmt: skip
        return run(self.engine, request)[0]

    @property
    def controller(self) -> WidthController:
        steering = self.governor.steering(4, "request")
        assert steering is not None
        return steering.controller


def widths_of(completion: Completion) -> set[int]:
    return {width for width, _ in completion.speculation.widths}


# -- measuring -------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafter", ["mixed", "scripted"])
def test_seconds_go_to_the_width_that_took_them(tmp_path: Path, machine: str, drafter: str) -> None:
    """Exactly, on every machine, though rounds are pipelined and widths change."""

    def cost(width: int) -> float:
        return 0.5 + 0.1 * width**1.5

    world = World(tmp_path, cost, machine=machine, drafter=drafter)
    for _ in range(5):
        world.ask(300)
    # Rounds of a drafter on the host wait for each other: building and running add up.
    factor = 1.5 if (machine, drafter) == ("host", "scripted") else 1.0
    found = [each for each in world.controller.snapshot()["widths"] if each["measured_seconds"]]
    assert len(found) >= 3
    for each in found:
        # The estimate of the speed that all widths share moves by a hair.
        assert each["measured_seconds"] == pytest.approx(factor * cost(each["width"]), rel=1e-6)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_round_before_another_width_has_no_time(tmp_path: Path, machine: str) -> None:
    """What goes wrong without the rule: the wrong seconds, on two of the three machines."""
    told: list[tuple[int, float]] = []
    world = World(tmp_path, flat, machine=machine)
    observe = world.controller.observe
    world.controller.observe = lambda width, emitted, seconds: (  # type: ignore[method-assign]
        told.append((width, seconds)),
        observe(width, emitted, seconds),
    )[1]
    for _ in range(6):
        world.ask()
    assert len({width for width, _ in told}) >= 3
    assert all(seconds == pytest.approx(flat(width)) for width, seconds in told)


def test_a_challenge_runs_in_series_and_the_steady_state_does_not_change_widths(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, machine="queue")
    for _ in range(8):
        world.ask()
    world.clock.ran.clear()
    world.ask()
    runs = [(width, len(list(same))) for width, same in itertools.groupby(world.clock.ran)]
    assert all(count >= 3 for _, count in runs[:-2])
    assert len(runs) <= 4


def test_a_round_that_a_stop_token_cut_says_nothing_of_acceptance() -> None:
    meter = BurstMeter(4)
    meter.controller = WidthController(8, 4)
    meter.add(4, 4, 1.0)
    before = meter.controller.to_json("k")
    meter.add(4, 1, 1.0, cut=True)
    assert meter.controller.to_json("k") == before


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_classic_steps_leave_no_holes_in_a_draft_models_cache(name: str) -> None:
    """The policy's and the controller's, fewer than a block and many more, before wide rounds."""
    model = tiny.loaded({"llama": tiny.llama_model, "gemma3": tiny.gemma3_model}[name](0))
    settings = Settings(length_step=64)
    for steps in (1, 2, 15, 16, 17, 50):
        engine = Engine(model, drafters.make("self", model, settings), settings)
        engine.add(Request(prompt_ids=PROMPT, params=SamplingParams(max_tokens=150), width=6))
        chunks = []
        while not engine.scheduler.running:
            chunks += engine.step()
        (state,) = engine.scheduler.running.values()
        state.probes_left = steps
        done = drain(engine, chunks)[0][state.id].speculation
        assert (done.width_min, done.acceptance) == (1, 1.0), steps


# -- finding ---------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["self", "scripted"])
def test_it_finds_the_wide_block_and_the_narrow_one(tmp_path: Path, drafter: str) -> None:
    wide = World(tmp_path / "a", flat, drafter=drafter)
    narrow = World(tmp_path / "b", lambda width: 0.1 + 0.3 * width**2, drafter=drafter)
    for _ in range(8):
        wide.ask()
        narrow.ask()
    assert wide.controller.holder >= 7
    assert narrow.controller.holder == 2
    done = wide.ask()
    assert done.decision.steered
    assert done.decision.width == done.speculation.width_requested == 4
    assert done.speculation.width_mean > 6
    assert sum(count for _, count in done.speculation.widths) == done.speculation.rounds


def test_lookup_is_steered_too(tmp_path: Path) -> None:
    world = World(tmp_path, drafter="lookup")
    classic = world.ask(300, "off").token_ids
    for _ in range(4):
        assert world.ask(300).token_ids == classic
    assert world.controller.rounds > 0


def test_only_probed_widths_run(tmp_path: Path) -> None:
    world = World(tmp_path, exact=(4, 6))
    ran = set()
    for _ in range(8):
        ran |= widths_of(world.ask())
    tails = {2, 3, 5, 1}  # of budgets, as ever
    assert ran - tails <= {4, 6}
    assert world.controller.holder == 6
    assert world.probed == [4]  # nobody waited for another probe


def test_an_inexact_width_never_runs_and_says_why(tmp_path: Path) -> None:
    world = World(tmp_path, exact=(2, 3, 4, 5), inexact=(6, 7, 8))
    for _ in range(8):
        assert widths_of(world.ask()) <= {1, 2, 3, 4, 5}
    (state,) = world.governor.snapshot()
    assert state["controller"]["excluded"] == dict.fromkeys((6, 7, 8), "rows differ")
    assert state["controller"]["width"] == 5


def test_resting_probes_one_width_at_a_time_nearest_first(tmp_path: Path) -> None:
    world = World(tmp_path, exact=(4,), inexact=(5,))
    assert not world.engine.rest(bool)  # nobody has asked for speculation yet
    world.ask()
    world.probed.clear()
    assert world.engine.rest(lambda: True)  # interrupted: nothing is known, more is left
    assert world.probed == []
    while world.engine.rest(bool):
        pass
    assert world.probed == [3, 2, 6, 7, 8]  # 5 was known to be inexact
    assert world.controller.arms.within(1) == (1, 2, 3, 4, 6, 7, 8)
    assert not world.engine.rest(bool)


def test_a_width_named_by_a_request_is_probed_for_it_and_known_then(tmp_path: Path) -> None:
    world = World(tmp_path, exact=(4,))
    world.ask()
    world.ask(width=6)
    assert 6 in world.controller.arms


# -- who decides what ------------------------------------------------------------------


def test_widths_are_as_given_where_they_were_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    for speculation in ("auto", "on"):
        done = world.ask(tokens=201, width=5, speculation=speculation)
        assert not done.decision.steered
        assert done.speculation.widths == ((5, 40),)
    requested = World(tmp_path, mtp_block_controller="requested")
    for _ in range(3):
        assert requested.ask(tokens=201).speculation.widths == ((4, 50),)
    assert not (tmp_path / FOLDER).exists()


def test_while_the_policy_profiles_the_width_is_fixed(tmp_path: Path) -> None:
    world = World(tmp_path, mtp_adaptive=True)
    for _ in range(4):
        done = world.ask(tokens=201)
        assert done.decision.reason.startswith("profiling")
        assert not done.decision.steered
        assert widths_of(done) <= {1, 2, 3, 4}
    done = world.ask(tokens=201)
    assert "measured" in done.decision.reason
    assert done.decision.steered


def test_parked(tmp_path: Path) -> None:
    """The policy runs the burst at its width, then no draft is right any more."""
    world = World(tmp_path, lambda width: 0.5 + 0.25 * width, mtp_adaptive=True, drafter="scripted")
    for _ in range(5):
        world.ask(tokens=120)
    classic = world.ask(tokens=120, speculation="off").token_ids
    world.engine.drafter._accepts = [0]  # type: ignore[union-attr]
    for _ in range(4):
        done = world.ask(tokens=120)
        assert done.token_ids == classic
    assert world.controller.holder == 1
    assert done.speculation.width_mean < 1.3
    short = world.ask(tokens=4)
    assert (short.decision.run, short.speculation.ran) == (True, False)
    assert short.speculation.reason == "parked: classic decode gave the most tokens per second"
    insisting = world.ask(tokens=41, speculation="on").speculation
    assert insisting.width_mean > 1.5


@pytest.mark.parametrize(
    "settings", [{"enable_mtp_b1": True}, {"mtp_adaptive": False}], ids=["override", "gate"]
)
def test_what_was_not_measured_is_not_parked(tmp_path: Path, settings: dict[str, Any]) -> None:
    world = World(tmp_path, lambda width: width**2, **settings)
    for _ in range(6):
        done = world.ask(tokens=201)
    assert done.decision.steered
    assert world.controller.holder == 2
    assert dict(done.speculation.widths).get(1, 0) <= 1  # the last token of the budget


def test_rounds_of_other_widths_do_not_reach_the_policy() -> None:
    meter = BurstMeter(4)
    meter.controller = controller = WidthController(8, 4)
    meter.add(4, 3, 1.0)
    for width in (1, 2, 8):
        meter.add(width, 1, 9.0)
    controller.holder = 8  # now 4 would be the one that is tried
    meter.add(4, 1, 9.0)
    sample = meter.sample()
    assert (sample.rounds, sample.emitted, sample.seconds) == (1, 3, 1.0)
    assert sample.probe_rounds == 0


def test_the_policy_sees_no_drift_in_what_the_controller_tries(tmp_path: Path) -> None:
    world = World(tmp_path, mtp_adaptive=True, drafter="mixed", machine="queue")
    states = []
    for _ in range(24):
        done = world.ask(tokens=120)
        states.append(done.decision.steered)
    assert states == sorted(states)  # it profiles once
    assert "measured" in done.decision.reason
    assert done.decision.steered


def test_several_rows_keep_the_width_they_were_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(8):
        world.ask()
    assert world.controller.holder > 4
    world.clock.ran.clear()
    params = SamplingParams(max_tokens=81, ignore_eos=True)
    requests = [Request(prompt_ids=(*PROMPT, at), params=params) for at in range(3)]
    done = run(world.engine, *requests)
    assert all(4 in widths_of(each) for each in done)


def test_a_drafter_that_fails_ends_the_steering(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask()
    assert world.engine.drafter is not None

    def broken(*_: Any) -> Any:
        raise RuntimeError("no more drafts")

    world.engine.drafter.draft = broken  # type: ignore[method-assign]
    done = world.ask(tokens=30)
    assert done.finish_reason == "length"
    assert "the drafter failed" in done.decision.reason
    assert widths_of(done) == {1}


# -- memory ----------------------------------------------------------------------------


def test_the_memory_outlives_requests_and_processes(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(8):
        world.ask()
    held = world.controller.holder
    assert held > 4
    again = World(tmp_path)
    assert again.ask().speculation.widths[-1][0] >= held
    assert again.controller.holder >= held
    for change in ({"weights": "stored"}, {"mlx": "2"}, {"drafter": "e"}, {"kernel": "narrow"}):
        other = World(tmp_path, key=replace(KEY, **change))
        assert other.controller.holder == 4


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', "\x00"])
def test_a_broken_memory_is_begun_anew(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = VerdictStore(tmp_path, FOLDER).path(replace(KEY, width=8))
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.INFO, logger="mlxcel"):
        world = World(tmp_path)
        assert world.ask().finish_reason == "length"
    assert str(path) in caplog.text
    for _ in range(8):
        world.ask()
    assert "holder" in path.read_text()


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("a file, not a folder")
    world = World(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            world.ask()
    assert world.controller.holder > 4
    assert "stays in memory" in caplog.text


# -- the thread ------------------------------------------------------------------------


def test_the_thread_rests_only_without_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxcel.engine.worker.REST_SECONDS", 0.01)
    worlds: list[World] = []

    def build() -> Engine:
        worlds.append(World(tmp_path, exact=(4,)))
        return worlds[0].engine

    thread = EngineThread(build)
    try:
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        chunks = thread.submit(Request(prompt_ids=PROMPT, params=params)).chunks
        while chunks.get(timeout=300).completion is None:  # type: ignore[union-attr]
            pass
        deadline = time.monotonic() + 300
        while len(worlds[0].probed) < 7 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(worlds[0].probed) == [2, 3, 4, 5, 6, 7, 8]
    finally:
        thread.close()


@pytest.mark.parametrize("where", ["pushed back", "being read"])
def test_a_drafter_that_fails_parks_those_that_do_not_run_too(tmp_path: Path, where: str) -> None:
    """Alone later, one of them asked its controller for widths that nobody could draft."""
    pushed = where == "pushed back"
    world = World(tmp_path, max_rows=1 if pushed else 3, prefill_chunk=16, prefix_bytes=0)
    engine, drafter = world.engine, world.engine.drafter
    assert drafter is not None
    for _ in range(3):
        world.ask(60)

    def add(tokens: int, prompt: tuple[int, ...] = PROMPT, priority: int = 0) -> int:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        return engine.add(Request(prompt_ids=prompt, params=params, priority=priority))

    if pushed:
        low, steps = add(60, priority=5), 6
    else:
        add(90)
        low, steps = -1, 4
    chunks = [chunk for _ in range(steps) for chunk in engine.step()]
    if pushed:
        add(90)
    else:
        low = add(60, PROMPT * 20)
    chunks += [chunk for _ in range(2 if pushed else 1) for chunk in engine.step()]
    state = next(each for each in engine.scheduler.unfinished if each.id == low)
    assert state not in engine.scheduler.running.values()

    def broken(*_: object) -> None:
        raise ValueError("no idea")

    drafter.draft = broken  # type: ignore[method-assign, assignment]
    while engine.busy:
        chunks += engine.step()
    done = {each.request_id: each.completion for each in chunks if each.completion}
    assert engine.failed is None
    assert done[low].finish_reason == "length"
    assert len(done[low].token_ids) == 60
