"""Widths of rounds of several rows in the engine: exact output, what is measured, who decides."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.decide.gate import mtp_b1_decision
from mlxcel.engine.drafters import Drafter, MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.governor import Facts, Governor
from mlxcel.engine.load_steering import FOLDER, LoadSteering
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.mtp import MtpChain
from mlxcel.types import Completion, Request, SamplingParams
from tests.engine.test_batching import some_requests
from tests.engine.test_mtp import random_head
from tests.engine.test_steering import World, widths_of
from tests.support import drafters, tiny
from tests.support.clockwork import KEY, MACHINES, exact
from tests.support.running import run

PROMPT = (3, 5, 7, 9, 11)
SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=5, max_width=8, mtp_adaptive=False)


def filled(rows_free: float) -> Any:
    """So many tokens of a pass are free, each further one costs its share."""
    return lambda rows, width: max(rows * width / rows_free, 1.0) + 0.02 * (width - 1)


class Crowd(World):
    """A `World` whose rounds cost by rows and width."""

    def __init__(self, folder: Path, cost: Any = None, **more: Any) -> None:
        given = cost or filled(1000)
        super().__init__(
            folder, lambda width: given(self.clock.rows, width), **({"max_rows": 4} | more)
        )

    @property
    def load(self) -> LoadSteering:
        load = self.governor.load()
        assert load is not None
        return load

    def many(self, rows: int, tokens: int = 80, **more: Any) -> list[Completion]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        request = Request(prompt_ids=PROMPT, params=params, **more)
        return run(self.engine, *[request] * rows)


def governed(
    model: LoadedModel, drafter: Drafter, folder: Path, *, wide: bool = True, **more: Any
) -> Engine:
    """An engine with a governor; ``wide`` is the gate's answer."""
    static = mtp_b1_decision(None, True, wide, host="this test")
    governor = Governor(
        lambda: Facts(static, lambda width: replace(KEY, width=width)),
        exact, VerdictStore(folder), SETTINGS, known=exact,
        sequential=drafter.sequential, serial=drafter.on_host, clock=lambda: 1.8e9,
    )  # fmt: skip
    return Engine(model, drafter, SETTINGS, governor=governor, **more)


def make(name: str, model: LoadedModel) -> Drafter:
    if name != "mtp":
        return drafters.make(name, model, SETTINGS)
    return MtpDrafter(MtpChain(random_head(model), slack=8, length_step=64))


# -- exact -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "drafter", "wide"),
    [
        ("llama", "lookup", False), ("gemma3", "lookup", True), ("gemma3", "self", True),
        ("llama", "self", False), ("llama", "liar", True), ("llama", "mtp", False),
        ("qwen3", "mtp", True),
    ],
)  # fmt: skip
def test_twins_while_widths_change_every_round(
    tmp_path: Path, name: str, drafter: str, wide: bool
) -> None:
    models = {"llama": tiny.llama_model, "gemma3": tiny.gemma3_model, "qwen3": tiny.qwen3_model}
    model = tiny.loaded(models[name]())
    requests = [
        replace(
            each,
            width=None if at % 3 else each.width,
            params=replace(each.params, max_tokens=14 + 2 * at),
        )
        for at, each in enumerate(some_requests(8, seed=len(name) + len(drafter)))
    ]
    solo = [run(Engine(model, None, SETTINGS), request)[0] for request in requests]
    engine = governed(model, make(drafter, model), tmp_path, wide=wide)
    assert engine.scheduler.governor is not None
    load = engine.scheduler.governor.load()
    assert load is not None
    turns, seen = itertools.cycle([1, 2, 8, 1, 3, 5]), set()

    def any_width(rows: int, tokens: Any, least: int = 1, *, joining: int) -> int:
        seen.add(next_width[0])
        chosen = max(next_width[0], least)
        next_width[0] = next(turns)
        return chosen

    next_width = [4]
    load.widths.choose = any_width  # type: ignore[method-assign]
    load.widths.peek = lambda rows, tokens, least=1, *, joining: max(next_width[0], least)  # type: ignore[method-assign]
    done: dict[int, Completion] = {}
    pending, ids = list(requests), []
    while pending or engine.busy:
        if pending:
            ids.append(engine.add(pending.pop(0)))
        for chunk in engine.step():
            if chunk.completion:
                done[chunk.request_id] = chunk.completion
    assert len(seen) >= 5
    for number, alone in zip(ids, solo, strict=True):
        assert done[number].token_ids == alone.token_ids
        assert done[number].text == alone.text
        assert done[number].finish_reason == alone.finish_reason
    assert engine.scheduler.table.live == 0


def test_rounds_without_drafts_leave_no_holes(tmp_path: Path) -> None:
    world = Crowd(tmp_path)
    world.many(2, tokens=9)
    widths = itertools.cycle([1, 4, 1, 1, 8, *[1] * 17, 2])
    world.load.widths.choose = lambda *_, **__: next(widths)  # type: ignore[method-assign]
    for done in world.many(2, tokens=100):
        assert done.speculation.acceptance == 1.0
        assert len(widths_of(done)) >= 4


def test_vetoed_and_unknown_widths_never_run_beside_others(tmp_path: Path) -> None:
    world = Crowd(tmp_path, exact=(2, 4), inexact=(3, 6))
    for _ in range(3):
        for done in world.many(3):
            # 3 and 5 may be the tail of a budget for a row, never the width that was chosen.
            assert widths_of(done) <= {1, 2, 3, 4}
    assert {cell["width"] for cell in world.load.snapshot()["cells"]} <= {1, 2, 4}
    assert world.load.snapshot()["excluded"] == {3: "rows differ", 6: "rows differ"}
    world.governor.rest(bool)
    assert world.load.widths.arms.within(1) >= (1, 2, 4)


# -- measuring -------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafter", ["mixed", "scripted"])
def test_seconds_go_to_the_rows_and_width_that_took_them(
    tmp_path: Path, machine: str, drafter: str
) -> None:
    """Also where drafting rounds wait for each other and parked ones are pipelined."""

    def cost(rows: int, width: int) -> float:
        return 1.0 + 0.1 * rows * width

    world = Crowd(tmp_path, cost, machine=machine, drafter=drafter)
    for rows in (3, 2, 3, 2):
        world.many(rows, tokens=160)
    cells = world.load.snapshot()["cells"]
    assert len({cell["rows"] for cell in cells}) == 2
    assert len({cell["width"] for cell in cells}) >= 3
    for cell in cells:
        serial = (machine, drafter) == ("host", "scripted") and cell["width"] > 1
        wanted = (1.5 if serial else 1.0) * cost(cell["rows"], cell["width"])
        assert cell["seconds"] == pytest.approx(wanted, rel=0.01), cell


def test_a_batch_that_fills_the_host_is_parked_and_a_wide_host_speculates(tmp_path: Path) -> None:
    full, wide = Crowd(tmp_path / "a", filled(3)), Crowd(tmp_path / "b")
    for _ in range(3):
        parked, spoken = full.many(4), wide.many(4)
        assert [a.token_ids for a in parked] == [b.token_ids for b in spoken]
    assert full.load.widths.held(4) == 1
    assert wide.load.widths.held(4) >= 6
    assert all(done.speculation.width_mean < 1.5 for done in full.many(4))
    for done in wide.many(4):  # identical requests keep it
        assert done.speculation.ran
        assert done.speculation.emitted_per_verify > 4
        assert "by the measured cost of rounds" in done.speculation.reason


def test_one_row_is_steered_as_ever_beside_the_table(tmp_path: Path) -> None:
    """Parked with four rows, wide alone: each by its own measurement."""
    world = Crowd(tmp_path, filled(3))
    for _ in range(3):
        world.many(4)
        world.ask()
    assert world.load.widths.held(4) == 1
    assert world.controller.holder > 1
    assert world.ask().speculation.width_mean > 1.5


# -- parked ----------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["lookup", "scripted", "self"])
def test_parked_rounds_are_pipelined_and_cost_what_they_cost_without_a_drafter(
    tmp_path: Path, drafter: str
) -> None:
    world = Crowd(tmp_path, filled(1), drafter=drafter, machine="host")
    world.many(4)
    world.load.widths.choose = lambda *_, **__: 1  # type: ignore[method-assign]
    world.load.widths.peek = lambda *_, **__: 1  # type: ignore[method-assign]
    plans, plan = [], world.engine.scheduler.plan
    world.engine.scheduler.plan = lambda before: plans.append(plan(before)) or plans[-1]  # type: ignore[method-assign,func-returns-value]
    begun = world.clock.now
    done = world.many(4, tokens=60)
    took = world.clock.now - begun
    rounds = [each for each in plans if each is not None and len(each.slots) == 4]
    assert sum(each.first for each in rounds) <= 1
    assert {each.width for each in rounds} == {1}
    bare = Crowd(tmp_path / "bare", filled(1), machine="host")
    bare.engine.drafter = None
    begun = bare.clock.now
    classic = bare.many(4, tokens=60)
    assert [each.token_ids for each in done] == [each.token_ids for each in classic]
    # Requests join one by one; the first burst alone may be drafted.
    assert took <= 1.05 * (bare.clock.now - begun)
    for each in done[1:3]:
        assert each.speculation.reason == "4 rows: classic decode gave the most tokens per second"
        assert not each.speculation.ran


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_draft_model_that_is_parked_for_long_makes_no_pass_and_forgets(
    tmp_path: Path, name: str
) -> None:
    model = tiny.loaded({"llama": tiny.llama_model, "gemma3": tiny.gemma3_model}[name]())
    drafter = drafters.make("self", model, SETTINGS)
    engine = governed(model, drafter, tmp_path)
    params = SamplingParams(max_tokens=190, ignore_eos=True)
    requests = [Request(prompt_ids=PROMPT * rows, params=params) for rows in (1, 4)]
    solo = [run(Engine(model, None, SETTINGS), request)[0] for request in requests]
    run(engine, *requests)
    assert engine.scheduler.governor is not None
    load = engine.scheduler.governor.load()
    assert load is not None
    passes, chosen = [], []
    skip, draft = drafter._model.skip, drafter._model.draft  # type: ignore[attr-defined]
    hidden = drafter._model.model.hidden  # type: ignore[attr-defined]

    def choose(*_: Any, **__: Any) -> int:
        chosen.append(1 if len(chosen) < 150 else 4)
        return chosen[-1]

    load.widths.choose = choose  # type: ignore[method-assign]
    inside = []

    def watch(call: Any) -> Any:
        def watched(*args: Any, **more: Any) -> Any:
            inside.append(call)
            try:
                return call(*args, **more)
            finally:
                inside.pop()

        return watched

    def counted(tokens: Any, caches: Any) -> Any:
        if inside:
            passes.append((len(chosen), tokens.shape[1]))
        return hidden(tokens, caches)

    drafter._model.skip, drafter._model.draft = watch(skip), watch(draft)  # type: ignore[attr-defined]
    drafter._model.model.hidden = counted  # type: ignore[attr-defined]
    done = run(engine, *requests)
    assert [each.token_ids for each in done] == [each.token_ids for each in solo]
    assert all(each.speculation.proposed for each in done)
    beside = [(at, fed) for at, fed in passes if at]
    assert min(at for at, _ in beside) > 150
    assert 64 <= sum(fed for at, fed in beside if at == 151) <= 64 + 9


def test_an_index_on_the_host_is_kept_up_to_date_while_parked(tmp_path: Path) -> None:
    world = Crowd(tmp_path, drafter="scripted")
    world.many(2, tokens=20)
    turn = iter(range(10**6))
    world.load.widths.choose = lambda *_, **__: 1 if next(turn) < 40 else 4  # type: ignore[method-assign]
    world.load.widths.peek = lambda *_, **__: 4  # type: ignore[method-assign]
    for done in world.many(2, tokens=120):
        # Every proposal after the parked time is right (7 of 7), but for the answer's end.
        assert done.speculation.acceptance > 0.95


# -- who decides what ------------------------------------------------------------------


def test_what_a_request_insists_on_is_kept(tmp_path: Path) -> None:
    world = Crowd(tmp_path, filled(1))
    for _ in range(3):
        world.many(3)
    assert world.load.widths.held(3) == 1
    for more in ({"width": 3}, {"width": 3, "speculation": "on"}):
        for done in world.many(3, tokens=61, **more):
            assert done.speculation.widths[-1] == (3, 20)
    for done in world.many(3, tokens=61, speculation="on"):
        assert 4 in widths_of(done)
    for done in world.many(3, speculation="off"):
        assert widths_of(done) == {1}


def test_a_row_that_insists_carries_those_that_do_not(tmp_path: Path) -> None:
    """Their share of the round costs the same with drafts as without."""
    world = Crowd(tmp_path, filled(2))
    for _ in range(4):
        world.many(3)
    assert world.load.widths.held(3) == 1
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    free = Request(prompt_ids=PROMPT, params=params)
    off = replace(free, speculation="off")
    insists, carried, classic = run(world.engine, replace(free, width=5), free, off)
    assert max(widths_of(insists)) == 5
    assert 5 in widths_of(carried)
    assert widths_of(classic) == {1}


@pytest.mark.parametrize("drafter", ["self", "lookup", "mtp"])
def test_where_the_gate_says_no_rows_speculate_only_beside_others(
    tmp_path: Path, drafter: str
) -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = governed(model, make(drafter, model), tmp_path, wide=False)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompt = PROMPT * 3
    request = Request(prompt_ids=prompt, params=params)
    (alone,) = run(engine, request)
    assert not alone.decision.run
    assert widths_of(alone) == {1}
    done = run(engine, *[request] * 3)
    for each in done:
        assert each.token_ids == alone.token_ids
        assert (each.decision.run, each.decision.source) == (False, "gate")
    assert sum(each.speculation.ran for each in done) >= 2
    assert all("beside other rows" in each.speculation.reason for each in done[:2])


def test_an_override_that_forbids_bursts_forbids_them_beside_others(tmp_path: Path) -> None:
    world = Crowd(tmp_path, enable_mtp_b1=False)
    for done in world.many(3):
        assert not done.speculation.ran
        assert done.decision.source == "override"


def test_widths_are_as_given_where_the_settings_say_so(tmp_path: Path) -> None:
    world = Crowd(tmp_path, filled(1), mtp_block_controller="requested")
    for done in world.many(3, tokens=61):
        assert done.speculation.widths[-1] == (4, 15)
    assert world.governor.crowd is None


def test_a_drafter_that_fails_beside_others_is_parked(tmp_path: Path) -> None:
    world = Crowd(tmp_path)
    world.many(3)
    assert world.engine.drafter is not None

    def broken(*_: Any) -> Any:
        raise RuntimeError("no more drafts")

    world.engine.drafter.draft = broken  # type: ignore[method-assign]
    for done in world.many(3, tokens=30):
        assert done.finish_reason == "length"
        assert "the drafter failed" in done.decision.reason


# -- memory and report -----------------------------------------------------------------


def test_the_memory_outlives_the_process_and_is_shown(tmp_path: Path) -> None:
    world = Crowd(tmp_path, filled(3))
    for _ in range(4):
        world.many(4)
    assert list((tmp_path / FOLDER).iterdir())
    again = Crowd(tmp_path, filled(3))
    assert again.load.widths.held(4) == 1
    shown = again.load.snapshot()
    json.dumps(shown)
    assert shown["holders"][4] == 1
    assert {"rows", "width", "rounds", "seconds", "tokens_per_second"} == set(shown["cells"][0])
    other = Crowd(tmp_path, filled(3), key=replace(KEY, weights="stored"))
    assert other.load.snapshot()["cells"] == []


def test_a_broken_memory_is_begun_anew(tmp_path: Path) -> None:
    path = VerdictStore(tmp_path, FOLDER).path(replace(KEY, width=8))
    path.parent.mkdir()
    path.write_text('{"version": 99}')
    world = Crowd(tmp_path)
    assert all(done.finish_reason == "length" for done in world.many(3))


def test_blocks_do_not_cross_the_limit_of_one_arithmetic(tmp_path: Path) -> None:
    """Up to eight tokens run by kernels of ours: three rows may not draft blocks of four."""
    model = tiny.loaded(tiny.llama_model())
    engine = governed(model, drafters.make("self", model, SETTINGS), tmp_path)
    engine.scheduler.alike = 8
    assert engine.scheduler.governor is not None
    load = engine.scheduler.governor.load()
    assert load is not None
    load.widths.choose = lambda rows, tokens, least=1, **_: max(4, least)  # type: ignore[method-assign]
    load.widths.peek = load.widths.choose  # type: ignore[method-assign]
    ran: set[tuple[int, int]] = set()
    verify = engine.batch.verify

    def seen(drafts: Any, widths: Any, **more: Any) -> Any:
        ran.add((len(widths), 1 if drafts is None else int(drafts.shape[1]) + 1))
        return verify(drafts, widths, **more)

    engine.batch.verify = seen  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    some = [
        Request(prompt_ids=PROMPT, params=replace(params, max_tokens=8 * at), width=width)
        for at, width in ((2, None), (3, None), (4, 4))
    ]
    done = run(engine, *some)
    assert {width for rows, width in ran if rows == 3} == {1}
    assert (2, 4) in ran
    assert [each.token_ids for each in done] == [
        run(Engine(model, None, SETTINGS), replace(one, width=None))[0].token_ids for one in some
    ]
