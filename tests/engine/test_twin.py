"""Twin checks: speculative token ids equal classic ones, whatever drafts and however wide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny
from tests.support.clockwork import Clockwork, steered_engine
from tests.support.running import one, run

PROMPT = (3, 9, 20, 7, 11, 3, 9, 20)
SETTINGS = Settings(length_step=64, prefill_chunk=16)
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}

# Every temperature and both kinds of history; the other pairs with `make test-slow`.
HEAT = [
    pytest.param(
        temperature, penalised,
        id=f"{temperature}-{'penalised' if penalised else 'plain'}",
        marks=[] if penalised == (temperature == 0.7) else [pytest.mark.slow],
    )
    for temperature in (0.0, 0.7, 1.3)
    for penalised in (False, True)
]  # fmt: skip

MODELS = {
    "llama": tiny.llama_model,
    "qwen2": tiny.qwen2_model,
    "qwen3": tiny.qwen3_model,
    "gemma3": tiny.gemma3_model,
    "gemma4": tiny.gemma4_model,
    "gemma4-shared": lambda: tiny.gemma4_model(shared=3),
}


@pytest.fixture(scope="module")
def twins():
    """Loaded models and the classic outputs already computed, by name and parameters."""
    models, outputs = {}, {}

    def get(name: str, tokens: int, params: tuple):
        if name not in models:
            models[name] = tiny.loaded(MODELS[name]())
        key = (name, tokens, params)
        if key not in outputs:
            engine = Engine(models[name], None, SETTINGS)
            outputs[key] = one(engine, PROMPT, max_tokens=tokens, **dict(params))
        return models[name], outputs[key]

    return get


def params_of(temperature: float, penalised: bool) -> tuple:
    extra = PENALTIES if penalised else {}
    return tuple({"temperature": temperature, "seed": 11, **extra}.items())


def check_alone(model, classic, drafter, width, params):
    """One request by itself: exact frames where the host knows the length."""
    engine = Engine(model, drafters.make(drafter, model, SETTINGS), SETTINGS)
    tokens = len(classic.token_ids)
    twin = one(engine, PROMPT, width, max_tokens=tokens, **dict(params))
    assert twin.token_ids == classic.token_ids
    stats = twin.speculation
    if drafter == "self":
        assert stats.acceptance == 1.0
        assert stats.rounds == -(-(tokens - 1) // width)
    if drafter == "liar":
        assert stats.accepted == 0
        assert stats.rounds == tokens - 1


def check_all_widths_together(model, classic, drafter, params, make=None):
    """Widths 2 to 8 and a classic row in one batch: ragged frames."""
    tokens = len(classic.token_ids)
    sampling = SamplingParams(max_tokens=tokens, **dict(params))
    requests = [
        Request(prompt_ids=PROMPT, params=sampling, width=width, speculation=mode)
        for width, mode in [*((width, "on") for width in range(2, 9)), (None, "off")]
    ]
    made = make() if make else drafters.make(drafter, model, SETTINGS)
    engine = Engine(model, made, SETTINGS)
    for twin in run(engine, *requests):
        assert twin.token_ids == classic.token_ids, twin.speculation.width_requested
        if drafter == "self" and twin.speculation.ran:
            assert twin.speculation.acceptance == 1.0


@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("drafter", ["lookup", "self", "liar", "mixed"])
def test_llama(twins, drafter, temperature, penalised):
    params = params_of(temperature, penalised)
    model, classic = twins("llama", 50, params)
    check_all_widths_together(model, classic, drafter, params)
    for width in range(2, 9) if temperature == 0.7 else (2, 5):
        check_alone(model, classic, drafter, width, params)


SCRIPTS = {"liar": [0], "scripted": [3, 0, 7, 1, 5, 0, 0, 2, 6, 4]}


@pytest.mark.parametrize(("temperature", "penalised"), HEAT)
@pytest.mark.parametrize("drafter", ["lookup", "self", "liar", "scripted"])
def test_window_of_32_over_500_tokens(twins, drafter, temperature, penalised):
    params = params_of(temperature, penalised)
    model, classic = twins("gemma3", 500, params)
    make = None
    if drafter in SCRIPTS:
        answers = {PROMPT: classic.token_ids}

        def make():
            return ScriptedDrafter(answers, SCRIPTS[drafter], tiny.VOCAB)

    check_all_widths_together(model, classic, drafter, params, make)
    if drafter == "scripted":
        twin = one(Engine(model, make(), SETTINGS), PROMPT, 6, max_tokens=500, **dict(params))
        assert twin.token_ids == classic.token_ids


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("drafter", ["lookup", "mixed"])
@pytest.mark.parametrize("name", ["gemma4", "gemma4-shared"])
def test_gemma4_past_many_wraps(twins, name, drafter, temperature):
    params = params_of(temperature, penalised=False)
    model, classic = twins(name, 120, params)
    check_all_widths_together(model, classic, drafter, params)
    check_alone(model, classic, drafter, 5, params)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize("drafter", ["lookup", "mixed"])
def test_other_families(twins, name, drafter):
    params = params_of(0.7, penalised=True)
    model, classic = twins(name, 80, params)
    engine = Engine(model, drafters.make(drafter, model, SETTINGS), SETTINGS)
    assert one(engine, PROMPT, 5, max_tokens=80, **dict(params)).token_ids == classic.token_ids


@pytest.mark.parametrize(("temperature", "penalised"), HEAT)
@pytest.mark.parametrize("drafter", ["lookup", "self", "liar", "mixed", "scripted"])
def test_widths_that_change_while_it_runs(twins, tmp_path, drafter, temperature, penalised):
    """The controller on a machine that keeps changing its mind about the best width."""
    params = params_of(temperature, penalised)
    name = "gemma3" if drafter in ("lookup", "scripted") else "llama"  # past a wrap, or many steps
    model, classic = twins(name, 140, params)
    settings = replace(SETTINGS, max_width=8, mtp_adaptive=False)
    if drafter == "scripted":
        made = ScriptedDrafter({PROMPT: classic.token_ids}, SCRIPTS["scripted"], tiny.VOCAB)
    else:
        made = drafters.make(drafter, model, settings)
    clock = Clockwork(lambda width: 1.0, "queue")
    engine = steered_engine(model, made, settings, clock, tmp_path)
    for favourite in (8, 2, 6):
        clock.cost = lambda width, best=favourite: 1.0 + abs(width - best)
        twin = one(engine, PROMPT, max_tokens=140, **dict(params))
        assert twin.token_ids == classic.token_ids, twin.speculation.widths
    assert twin.decision.steered
    assert len(set(clock.ran)) >= 2


def test_forced_rejection_costs_no_later_acceptance(twins):
    """A rejected draft leaves nothing behind in the draft model's own cache."""
    model, _ = twins("llama", 120, params_of(0.0, penalised=False))
    engine = Engine(model, drafters.make("mixed", model, SETTINGS), SETTINGS)
    stats = one(engine, PROMPT, 8, max_tokens=120).speculation
    assert stats.accepted_by_position[:2] == stats.proposed_by_position[:2]
    assert stats.accepted_by_position[2] == 0


@pytest.mark.parametrize("chunk", [5, 16, 512])
def test_prompt_longer_than_the_window(chunk):
    model = tiny.loaded(tiny.gemma3_model())
    settings = Settings(length_step=64, prefill_chunk=chunk)
    prompt = tuple((7 * i + 3) % tiny.VOCAB for i in range(150))
    classic = one(Engine(model, None, settings), prompt, max_tokens=60)
    for name in ("self", "mixed"):
        engine = Engine(model, drafters.make(name, model, settings), settings)
        assert one(engine, prompt, 6, max_tokens=60).token_ids == classic.token_ids
