"""An assistant inside the engine: exact output, and the drafts a fresh computation makes."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.assistant_drafter import AssistantDrafter
from mlxcel.engine.engine import Engine
from mlxcel.runtime import assistant as runtime_assistant
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.noise import gumbel, noise_keys, seed_words
from mlxcel.types import Request, SamplingParams
from tests.support import tiny
from tests.support.assistants import plain_drafts, plain_sources, tiny_assistant
from tests.support.running import one, run

WINDOW = tiny.WINDOW
SETTINGS = Settings(length_step=64, prefill_chunk=16, max_width=8)
TEXT = [(7 * at + 3) % tiny.VOCAB for at in range(60)]
SCRIPT = [3, 0, 6, 1, 5, 0, 2, 4, 7]
# Before, at and after the window: the drafts of a run begin there and go on across it.
LENGTHS = [8, WINDOW - 1, WINDOW, WINDOW + 9]
MODELS = {
    "own": lambda: tiny.gemma4_model(),
    "shared": lambda: tiny.gemma4_model(shared=3),
}


class Recording(AssistantDrafter):
    """Keeps what was proposed and at which length, then swaps in scripted drafts."""

    def __init__(self, chain, text, script=SCRIPT):
        super().__init__(chain)
        self.seen, self.text, self.script = [], text, script

    def alter(self, tokens, batch):
        length = int(np.array(batch.lengths)[0])
        self.seen.append((length, np.array(tokens)[0].tolist()))
        right = self.script[len(self.seen) % len(self.script)]
        known = [*self.text, *[0] * 20][length + 1 : length + 1 + tokens.shape[1]]
        drafts = [t if at < right else (t + 1) % tiny.VOCAB for at, t in enumerate(known)]
        return mx.array([drafts], dtype=mx.uint32)


@pytest.fixture(scope="module")
def pair():
    """A target with its assistant, by name and head; and classic outputs by prompt length."""
    made = {}

    def get(name="own", ordered=False):
        if (name, ordered) not in made:
            model = tiny.loaded(MODELS[name]())
            made[name, ordered] = model, tiny_assistant(model.target, ordered=ordered)
        return made[name, ordered]

    return get


def classic_text(model, length, tokens, **params):
    answer = one(Engine(model, None, SETTINGS), TEXT[:length], max_tokens=tokens, **params)
    return answer, [*TEXT[:length], *answer.token_ids]


def check_drafts(model, assistant, drafter, text, **options):
    """Every recorded proposal equals one made without slot caches; return how many were."""
    checked = 0
    for length, proposed in drafter.seen:
        if length + 1 <= len(text):  # else the round after the end, in flight when it came
            fresh = plain_drafts(
                model.target, assistant, text, length, len(proposed), **options
            )
            assert proposed == fresh, length
            checked += 1
    return checked


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("name", "ordered"), [("own", False), ("shared", True)])
def test_drafts_equal_a_fresh_computation(pair, name, ordered, length):
    """After every number of accepted drafts, and with a prompt read in chunks."""
    model, assistant = pair(name, ordered)
    classic, text = classic_text(model, length, 30)
    drafter = Recording(AssistantChain(assistant), text)
    twin = one(Engine(model, drafter, SETTINGS), TEXT[:length], 8, max_tokens=30)
    assert twin.token_ids == classic.token_ids
    assert 0 < twin.speculation.accepted < twin.speculation.proposed
    assert twin.speculation.kind == "assistant"
    checked = check_drafts(model, assistant, drafter, text)
    assert checked >= twin.speculation.rounds - 2


def test_the_position_of_the_last_token_is_a_setting(pair):
    model, assistant = pair()
    _, text = classic_text(model, 20, 30)
    found = {}
    for position, late in (("pending", 0), ("last", -1)):
        drafter = Recording(AssistantChain(assistant, position=position), text)
        one(Engine(model, drafter, SETTINGS), TEXT[:20], 8, max_tokens=30)
        assert check_drafts(model, assistant, drafter, text, late=late)
        found[position] = drafter.seen
    assert found["pending"] != found["last"]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_window_of_one_more(pair, length):
    """What transformers shows an assistant; the ring still holds it."""
    model, assistant = pair()
    _, text = classic_text(model, length, 30)
    chain = AssistantChain(assistant, window=WINDOW + 1)
    drafter = Recording(chain, text)
    one(Engine(model, drafter, SETTINGS), TEXT[:length], 8, max_tokens=30)
    assert check_drafts(model, assistant, drafter, text, window=WINDOW + 1)


def test_a_larger_window_is_refused(pair):
    model, assistant = pair()
    chain = AssistantChain(assistant, window=WINDOW + 2)
    engine = Engine(model, AssistantDrafter(chain), SETTINGS)
    answer = one(engine, TEXT[:8], 4, max_tokens=10)
    assert "cannot show the newest 34" in answer.decision.reason
    assert answer.token_ids == classic_text(model, 8, 10)[0].token_ids


def _lagging(monkeypatch):
    """Shows the assistant what was rejected, as a length that was not lowered would."""
    plain = runtime_assistant.view

    def stale(layer, frame, window):
        later = Frame(frame.offset + 2, 1, frame.bound + 2)
        return plain(layer, later, window)

    monkeypatch.setattr(runtime_assistant, "view", stale)


def _old_state(monkeypatch):
    """Keeps the hidden state of the last row of a block, whatever was accepted."""
    plain = AssistantChain.absorb

    def last(chain, check):
        plain(chain, check)
        chain.state = check.hidden[:, -1:]
        return chain.state

    monkeypatch.setattr(AssistantChain, "absorb", last)


def _earlier_position(monkeypatch):
    plain = runtime_assistant.AssistantChain.draft

    def early(chain, batch, width, *, bound, exact):
        chain.position = "last"
        return plain(chain, batch, width, bound=bound, exact=exact)

    monkeypatch.setattr(AssistantChain, "draft", early)


@pytest.mark.parametrize("mistake", [_lagging, _old_state, _earlier_position])
def test_a_mistake_would_be_noticed(pair, monkeypatch, mistake):
    """It changes no token of the answer, and the comparison of drafts shows it."""
    model, assistant = pair()
    classic, text = classic_text(model, WINDOW, 30)
    mistake(monkeypatch)
    drafter = Recording(AssistantChain(assistant), text)
    twin = one(Engine(model, drafter, SETTINGS), TEXT[:WINDOW], 8, max_tokens=30)
    assert twin.token_ids == classic.token_ids
    with pytest.raises(AssertionError):
        check_drafts(model, assistant, drafter, text)


def test_classic_steps_leave_nothing_to_catch_up_with(pair):
    model, assistant = pair()
    classic, text = classic_text(model, 8, 80)
    drafter = Recording(AssistantChain(assistant), text)
    engine = Engine(model, drafter, SETTINGS)
    engine.add(Request(prompt_ids=tuple(TEXT[:8]), params=SamplingParams(max_tokens=80), width=4))
    ids, paused = [], 0
    while engine.busy:
        for state in engine.scheduler.running.values():
            if len(drafter.seen) // 3 > paused:
                paused += 1
                state.probes_left = 5
        for chunk in engine.step():
            ids += chunk.token_ids
    assert ids == list(classic.token_ids)
    assert paused > 2
    assert check_drafts(model, assistant, drafter, text) > 6


@pytest.mark.parametrize(("name", "temperature"), [
    ("own", 0.0), ("own", 0.7), ("shared", 0.7),
    pytest.param("shared", 0.0, marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("length", LENGTHS)
def test_twin(pair, name, length, temperature):
    model, assistant = pair(name, ordered=name == "shared")
    params = {"temperature": temperature, "seed": 5}
    classic, text = classic_text(model, length, 20, **params)
    for width in (2, 4, 8):
        drafter = Recording(AssistantChain(assistant), text)
        engine = Engine(model, drafter, SETTINGS)
        twin = one(engine, TEXT[:length], width, max_tokens=20, **params)
        assert twin.token_ids == classic.token_ids, width
        assert twin.speculation.accepted > 0


@pytest.mark.parametrize("ordered", [False, True], ids=["dense", "ordered"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_mixed_batch(pair, temperature, ordered):
    """Ragged rows before, at and after the window, with classic rows and penalties among them."""
    model, assistant = pair("own", ordered)
    plain = SamplingParams(max_tokens=15, temperature=temperature, seed=5)
    penalised = replace(plain, repetition_penalty=1.2, frequency_penalty=0.3)
    requests = [
        Request(prompt_ids=tuple(TEXT[:length]), params=params, width=width, speculation=mode)
        for length, width, mode, params in [
            (8, 2, "on", plain), (WINDOW - 1, 8, "on", penalised), (7, None, "off", plain),
            (WINDOW, 4, "on", plain), (WINDOW + 9, 4, "on", plain), (3, 8, "on", penalised),
        ]
    ]  # fmt: skip
    engine = Engine(model, AssistantDrafter(AssistantChain(assistant)), SETTINGS)
    for request, twin in zip(requests, run(engine, *requests), strict=True):
        alone = run(Engine(model, None, SETTINGS), replace(request, speculation="off", width=None))
        assert twin.token_ids == alone[0].token_ids, request.width
        assert twin.speculation.ran == (request.speculation == "on")
    assert engine.drafter.nbytes == 0


def test_proposes_inside_a_batch_what_it_proposes_alone(pair):
    """Joining, leaving and neighbours do not touch a row's hidden state or what it sees."""
    model, assistant = pair()
    requests = [
        Request(prompt_ids=tuple(TEXT[:length]), params=SamplingParams(max_tokens=tokens), width=4)
        for length, tokens in [(8, 40), (WINDOW + 3, 12), (20, 25)]
    ]
    together = _proposals(model, assistant, requests)
    for at, request in enumerate(requests):
        alone = _proposals(model, assistant, [request])
        for key in alone[0].keys() & together[at].keys():
            # A budget that ends makes a round narrower, alone and in a batch at other places.
            common = min(len(alone[0][key]), len(together[at][key]))
            assert alone[0][key][:common] == together[at][key][:common], key
        assert len(alone[0].keys() & together[at].keys()) > 5


def _proposals(model, assistant, requests):
    """By request, the drafts at each length; every draft is wrong, so that lengths are alike."""
    found = [{} for _ in requests]

    class Wrong(AssistantDrafter):
        def alter(self, tokens, batch):
            # Slots are numbered as requests are admitted, and none is used twice here.
            for row, slot in enumerate(engine.rows.slots):
                length = int(np.array(batch.lengths)[row])
                found[slot][length] = np.array(tokens)[row].tolist()
            return mx.full(tokens.shape, tiny.VOCAB - 1, mx.uint32)

    engine = Engine(model, Wrong(AssistantChain(assistant)), SETTINGS)
    run(engine, *requests)
    return found


@pytest.mark.parametrize("ordered", [False, True], ids=["dense", "ordered"])
def test_drafts_are_drawn_with_the_noise_of_the_target(pair, ordered):
    model, assistant = pair("own", ordered)
    params = {"temperature": 0.7, "seed": 9}
    _, text = classic_text(model, 20, 12, **params)
    drafter = Recording(AssistantChain(assistant), text)
    one(Engine(model, drafter, SETTINGS), TEXT[:20], 2, max_tokens=12, **params)
    seeds = mx.array([seed_words(9)], mx.uint32)
    for length, proposed in drafter.seen:
        if length + 1 > len(text):
            continue
        sources, state = plain_sources(model.target, assistant, text[:length])
        token = mx.array([[text[length]]], mx.uint32)
        logits, ids = assistant.logits(assistant.step(token, state, sources, length))
        ids = mx.arange(tiny.VOCAB, dtype=mx.uint32)[None, None] if ids is None else ids
        noise = gumbel(noise_keys(seeds, mx.array([[length + 1]])), ids)
        best = mx.argmax((logits / 0.7 + noise)[0, 0])
        assert proposed == [int(ids[0, 0, best].item())]
    assert len(drafter.seen) > 4


def test_a_prompt_that_begins_like_another_one_needs_only_the_targets_caches(pair):
    model, assistant = pair()
    classic, text = classic_text(model, 25, 30)
    engine = Engine(model, AssistantDrafter(AssistantChain(assistant)), SETTINGS)
    one(engine, TEXT[:25], 4, max_tokens=2)
    engine.drafter = drafter = Recording(AssistantChain(assistant), text)
    again = one(engine, TEXT[:25], 4, max_tokens=30)
    assert again.token_ids == classic.token_ids
    assert again.usage.cached_tokens > 0
    assert check_drafts(model, assistant, drafter, text) > 3


def peak_of_a_round(model, assistant):
    """Bytes that four rounds take beside large buffers, in buffers."""
    big = replace(SETTINGS, length_step=65536)
    engine = Engine(model, AssistantDrafter(AssistantChain(assistant)), big)
    engine.add(Request(prompt_ids=tuple(TEXT[:8]), params=SamplingParams(max_tokens=40), width=4))
    for _ in range(4):
        engine.step()
    buffer = max(array.nbytes for array in engine.batch.caches.state)
    assert buffer > 8 * 2**20
    mx.synchronize()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(4):
        engine.step()
    mx.synchronize()
    used = (mx.get_peak_memory() - before) / buffer
    while engine.busy:
        engine.step()
    return used


def test_drafting_copies_no_cache(pair, monkeypatch):
    """The views are let go before the verify pass writes, so that it writes in place."""
    assert peak_of_a_round(*pair()) < 0.5
    held, plain = [], AssistantChain.sources
    monkeypatch.setattr(
        AssistantChain, "sources", lambda *args: held.append(plain(*args)) or held[-1]
    )
    assert peak_of_a_round(*pair()) > 1  # what holding them would cost


def test_invariant_numerics(pair):
    model, assistant = pair()
    settings = replace(SETTINGS, numerics="invariant", default_width=4)
    classic = one(Engine(model, None, settings), TEXT[:20], max_tokens=30)
    engine = Engine(model, AssistantDrafter(AssistantChain(assistant)), settings)
    assert one(engine, TEXT[:20], 4, max_tokens=30).token_ids == classic.token_ids
