"""Targets with recurrent layers in the engine: they batch and speculate, and nothing differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.config import Settings
from mlxcel.decide.exactness import veto_of
from mlxcel.engine.drafters import LookupDrafter, MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.exactness import probe_exactness
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.models import gated_delta
from mlxcel.models.gated_delta import Block, State
from mlxcel.models.target import Target
from mlxcel.runtime import state_cache
from mlxcel.runtime.mtp import MtpChain
from mlxcel.types import Request, SamplingParams
from tests.engine.test_mtp import Recording, drafts_afresh
from tests.support import tiny
from tests.support.qwen import tiny_head
from tests.support.running import classic as without
from tests.support.running import drain, one, run

PROMPT = (3, 9, 20, 7, 11, 3, 9, 20)
OTHER = tuple((5 * at + 2) % tiny.VOCAB for at in range(21))
SETTINGS = Settings(length_step=64, prefill_chunk=6, max_width=8)
TOKENS = 40
HOT = {"temperature": 0.7, "seed": 11, "repetition_penalty": 1.2}


def some(known: tuple[tuple[str, ...], ...], *axes: Any) -> list[Any]:
    """All combinations, of which those that are not named run with the slow tests."""
    return [
        pytest.param(*each, marks=() if each in known else pytest.mark.slow)
        for each in itertools.product(*axes)
    ]


DRAFTERS = ("lookup", "head", "scripted")
ALONE = (
    *(("qwen3.5", each, "greedy") for each in DRAFTERS),
    ("qwen3-next", "scripted", "hot"), ("qwen3-next", "head", "hot"),
)  # fmt: skip
TOGETHER = (
    ("qwen3.5", "head"), ("qwen3.5-moe", "scripted"), ("qwen3-next", "lookup"),
    ("qwen3-next-dense", "scripted"),
)  # fmt: skip


@pytest.fixture(scope="module")
def twins() -> Callable[..., Any]:
    """Loaded models, and classic answers by name and parameters."""
    models: dict[str, Any] = {}
    answers: dict[Any, Any] = {}

    def get(name: str, prompt: tuple[int, ...] = PROMPT, **params: Any) -> Any:
        if name not in models:
            models[name] = tiny.loaded(tiny.HYBRIDS[name]())
        key = (name, prompt, tuple(params.items()))
        if key not in answers:
            engine = Engine(models[name], None, SETTINGS)
            answers[key] = one(engine, prompt, max_tokens=TOKENS, **params)
        return models[name], answers[key]

    return get


def echoing_head(model: Any) -> Any:
    """A random head that mostly repeats the target's hidden state: some drafts are accepted."""
    head = tiny_head(model.target)
    size = head.fc.weight.shape[0]
    head.fc.weight = mx.concatenate([mx.zeros((size, size)), mx.eye(size)], axis=1)
    layer = head.layers[0]
    layer.self_attn.o_proj.weight = layer.self_attn.o_proj.weight * 0.2
    for name, value in (("pre_fc_norm_hidden", 1.0), ("norm", 1.0)):
        head[name].weight = mx.full((size,), value)
    return head


def drafter_of(
    name: str, model: Any, answers: dict[tuple[int, ...], Any], settings: Settings = SETTINGS
) -> Any:
    if name == "lookup":
        return LookupDrafter(settings.max_rows + 1)
    if name == "head":
        chain = MtpChain(
            echoing_head(model), slack=settings.max_width, length_step=settings.length_step
        )
        return MtpDrafter(chain)
    script = [0, 1, 2, 3, 4, 5, 6, 7, 0, 7, 0]
    texts = {prompt: answer.token_ids for prompt, answer in answers.items()}
    return ScriptedDrafter(texts, script, tiny.VOCAB)


def test_the_answer_is_mlx_lms_own(twins: Any) -> None:
    """Greedy, step by step, with the model's own caches."""
    for name in ("qwen3.5-moe", "qwen3-next"):
        model, answer = twins(name)
        caches = model.target.new_native_cache()
        logits = model.target.model(mx.array([PROMPT], mx.uint32), cache=caches)
        found = []
        for _ in range(TOKENS):
            found.append(int(mx.argmax(logits[0, -1]).item()))
            logits = model.target.model(mx.array([[found[-1]]], mx.uint32), cache=caches)
        assert answer.token_ids == tuple(found), name


@pytest.mark.parametrize(
    ("name", "drafter", "heat"),
    some(ALONE, ("qwen3.5", "qwen3-next"), DRAFTERS, ("greedy", "hot")),
)
def test_widths_alone(twins: Any, name: str, drafter: str, heat: str) -> None:
    params: dict[str, Any] = HOT if heat == "hot" else {}
    model, answer = twins(name, **params)
    engine = Engine(model, drafter_of(drafter, model, {PROMPT: answer}), SETTINGS)
    accepted = proposed = 0
    for width in (2, 4, 8):
        twin = one(engine, PROMPT, width, max_tokens=TOKENS, **params)
        assert twin.token_ids == answer.token_ids, width
        accepted += twin.speculation.accepted
        proposed += twin.speculation.proposed
    assert accepted < proposed or drafter == "lookup"  # something was rejected
    assert accepted > 0 or drafter != "scripted"


@pytest.mark.parametrize(("name", "drafter"), some(TOGETHER, tiny.HYBRIDS, DRAFTERS))
def test_widths_together(twins: Any, name: str, drafter: str) -> None:
    """Rows of several widths, classic ones and another text in one batch: ragged frames."""
    model, answer = twins(name)
    _, other = twins(name, OTHER)
    sampling = SamplingParams(max_tokens=TOKENS)
    requests = [
        Request(prompt_ids=PROMPT, params=sampling, width=width, speculation="on")
        for width in (2, 8, 4)
    ]
    requests[1:1] = [
        without(requests[0]),
        Request(prompt_ids=OTHER, params=sampling, speculation="off"),
    ]
    answers = {PROMPT: answer, OTHER: other}
    engine = Engine(model, drafter_of(drafter, model, answers), SETTINGS)
    assert engine.scheduler.max_rows == SETTINGS.max_rows
    found = run(engine, *requests)
    for at, twin in enumerate(found):
        assert twin.token_ids == (other if at == 2 else answer).token_ids, at
    accepted = sum(twin.speculation.accepted for twin in found)
    assert accepted < sum(twin.speculation.proposed for twin in found)
    assert accepted > 0 or drafter != "scripted"


def test_classic_steps_of_a_fixed_shape(twins: Any) -> None:
    """Padding behind a classic step goes into the block, and never into the state."""
    model, answer = twins("qwen3.5")
    settings = replace(SETTINGS, numerics="invariant", default_width=4)
    engine = Engine(model, drafter_of("lookup", model, {PROMPT: answer}, settings), settings)
    assert one(engine, PROMPT, max_tokens=TOKENS).token_ids == answer.token_ids
    assert one(engine, PROMPT, 4, max_tokens=TOKENS).token_ids == answer.token_ids


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_drafts_equal_a_fresh_computation(twins: Any, name: str) -> None:
    """The head reads the hidden states of a target whose state was brought back."""
    model, answer = twins(name)
    head = echoing_head(model)
    text = [*PROMPT, *answer.token_ids]
    chain = MtpChain(head, slack=SETTINGS.max_width, length_step=SETTINGS.length_step)
    drafter = Recording(chain, text, [3, 0, 6, 1, 5, 0, 2, 4])
    twin = one(Engine(model, drafter, SETTINGS), PROMPT, 7, max_tokens=TOKENS)
    assert twin.token_ids == answer.token_ids
    checked = 0
    for length, proposed in drafter.seen:
        if length + 1 <= len(text):
            assert proposed == drafts_afresh(model, head, text, length, len(proposed)), length
            checked += 1
    assert checked >= twin.speculation.rounds - 2


def test_no_prompt_resumes_from_another(twins: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = twins("qwen3.5")
    with caplog.at_level("INFO", "mlxcel"):
        engine = Engine(model, None, SETTINGS)
    assert "no prompt resumes from another's prefix: a recurrent state" in caplog.text
    first, second = (one(engine, OTHER, max_tokens=8) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert second.usage.cached_tokens == 0
    assert engine.prefixes.nbytes == 0


def test_a_request_that_would_not_fit_is_told_by_its_states(twins: Any) -> None:
    """States are in the budget: rows are bounded by them, not by their tokens."""
    model, answer = twins("qwen3.5")
    engine = Engine(model, drafter_of("lookup", model, {PROMPT: answer}), SETTINGS)
    cost = engine.scheduler.budget.cost
    states = sum(layer.position_bytes for layer in cost.layers if layer.most == 1)
    assert states > 0
    rows = 3
    tight = replace(SETTINGS, cache_bytes=cost.bytes_of([len(PROMPT) + TOKENS] * rows))
    engine = Engine(model, drafter_of("lookup", model, {PROMPT: answer}), tight)
    sampling = SamplingParams(max_tokens=TOKENS)
    request = Request(prompt_ids=PROMPT, params=sampling, width=8, speculation="on")
    for _ in range(rows + 2):
        engine.add(request)
    most = held = 0
    while engine.busy:
        engine.step()
        most = max(most, len(engine.scheduler.running))
        held = max(held, engine.batch.caches.nbytes)
    assert most == rows
    assert held <= tight.cache_bytes


def test_a_request_that_is_pushed_back_reads_its_text_again(twins: Any) -> None:
    """No prefix of its state can be kept, so all of it is read a second time."""
    model, answer = twins("qwen3.5")
    _, other = twins("qwen3.5", OTHER)
    settings = replace(SETTINGS, max_rows=1)
    engine = Engine(model, drafter_of("head", model, {}, settings), settings)
    sampling = SamplingParams(max_tokens=TOKENS)
    first = engine.add(Request(prompt_ids=PROMPT, params=sampling, width=4))
    before = [chunk for _ in range(8) for chunk in engine.step()]
    assert 0 < sum(len(chunk.token_ids) for chunk in before) < TOKENS
    second = engine.add(Request(prompt_ids=OTHER, params=sampling, width=4, priority=-1))
    done, chunks = drain(engine, before)
    assert [chunk.request_id for chunk in chunks if chunk.completion] == [second, first]
    assert done[first].token_ids == answer.token_ids
    assert done[second].token_ids == other.token_ids


# -- the exactness probe ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_the_probe_passes(name: str) -> None:
    record = probe_exactness(tiny.loaded(tiny.HYBRIDS[name]()).target, 4, SETTINGS)
    assert record.level in ("bitwise", "token"), record.reason
    assert not veto_of(record).vetoed


def _count(by: int) -> Callable[[Any], Any]:
    def wrong(plain: Any) -> Any:
        def replayed(layer: Any, state: State, block: Block, count: Any, *rest: Any) -> State:
            if isinstance(count, int):
                count = min(count + by, block.inputs.shape[1])
                return plain(layer, state, block, count) if count else state
            used, window = rest
            steps = mx.arange(used.shape[1], dtype=mx.int32)[None, :, None]
            used = steps < count[:, None, None] + by
            window = mx.minimum(window + by, used.shape[1] + window.shape[1] - 1)
            return plain(layer, state, block, count, used, window)

        return replayed

    return wrong


def _never(plain: Any) -> Any:
    return lambda layer, state, *rest: state


def _old_window(plain: Any) -> Any:
    return lambda layer, state, *rest: State(state.window, plain(layer, state, *rest).memory)


def _old_memory(plain: Any) -> Any:
    return lambda layer, state, *rest: State(plain(layer, state, *rest).window, state.memory)


BROKEN = {
    "one token too many": _count(1),
    "one token too few": _count(-1),
    "nothing": _never,
    "the memory only": _old_window,
    "the window only": _old_memory,
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_probe_catches_a_broken_replay(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = BROKEN[broken](gated_delta.replayed)
    monkeypatch.setattr(state_cache, "replayed", wrong)
    target = Target(tiny.qwen35_model(), {})
    record = probe_exactness(target, 4, SETTINGS)
    assert record.level == "divergent", record.reason
    assert veto_of(record).vetoed
