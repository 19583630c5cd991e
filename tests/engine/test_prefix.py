"""Prompts that begin like another's: resumed where they differ, with the output of a cold run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxcel.config import Settings
from mlxcel.decide import prefix_index
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.errors import EngineError
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.prefill import Prefill
from mlxcel.types import Request, SamplingParams
from tests.engine.test_mtp import Recording, drafts_afresh, random_head
from tests.support import drafters, tiny
from tests.support.running import classic, drain, run

WARM = Settings(length_step=64, prefill_chunk=16, max_rows=4)
COLD = replace(WARM, prefix_bytes=0)
KINDS = [None, "lookup", "self", "mtp"]
SYSTEM = [(5 * i * i + 3 * i) % 50 for i in range(45)]
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
WAYS = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 4},
    "penalised": {"temperature": 0.7, "seed": 4, **PENALTIES},
}


@pytest.fixture(scope="module")
def llama():
    return tiny.loaded(tiny.llama_model())


@pytest.fixture(scope="module")
def gemma():
    return tiny.loaded(tiny.gemma3_model())


def made(kind, model, settings=WARM):
    """An engine with a drafter of this kind."""
    drafter = None
    if kind == "mtp":
        sizes = {"slack": settings.max_width, "length_step": settings.length_step}
        head = random_head(model)
        attention = head.layers[0].self_attn.o_proj  # strong, so that drafts depend on its cache
        attention.weight = attention.weight * 5.0
        drafter = MtpDrafter(MtpChain(head, **sizes))
    elif kind is not None:
        drafter = drafters.make(kind, model, settings)
    return Engine(model, drafter, settings)


def ask(prompt, tokens=16, kind=None, **params) -> Request:
    """A request at width 4, with log-probabilities."""
    given = SamplingParams(max_tokens=tokens, logprobs=2, **params)
    return Request(prompt_ids=tuple(prompt), params=given, width=4 if kind else None)


def check(completion, request, model, kind=None):
    """The output is that of a classic cold run; as many drafts are accepted as in one."""
    cold = run(made(None, model, COLD), classic(request))[0]
    assert completion.token_ids == cold.token_ids
    assert completion.finish_reason == cold.finish_reason
    assert cold.usage.cached_tokens == 0
    for ours, theirs in zip(completion.logprobs, cold.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    if kind:
        stats = run(made(kind, model, COLD), request)[0].speculation
        assert completion.speculation.accepted_by_position == stats.accepted_by_position
        assert completion.speculation.proposed == stats.proposed


def given_back(kind) -> int:
    """Tokens of a match that are read again: the state behind them depends on the next one."""
    return 1 if kind in ("self", "mtp") else 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_system_prompt(llama, kind, way):
    engine = made(kind, llama)
    for user in range(3):
        request = ask([*SYSTEM, 51 + user, *range(user, user + 6)], kind=kind, **WAYS[way])
        completion = run(engine, request)[0]
        assert completion.usage.cached_tokens == (len(SYSTEM) - given_back(kind) if user else 0)
        check(completion, request, llama, kind)
    assert engine.prefixes.store.snapshot()["hits"] == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_turns_of_a_chat(request, name, kind, way):
    """Each prompt is the last one, its answer, and more; one copy is kept, of the longest."""
    if name == "gemma3" and kind == "mtp":
        pytest.skip("no MTP head is known for this model")
    model = request.getfixturevalue("llama" if name == "llama" else "gemma")
    engine, prompt, before = made(kind, model), SYSTEM, 0
    for turn in range(4):
        turned = ask(prompt, kind=kind, **WAYS[way])
        completion = run(engine, turned)[0]
        check(completion, turned, model, kind)
        cached = completion.usage.cached_tokens
        if turn:
            # The last output token was never fed; a draft model may have seen one less.
            assert cached == before - 1 - (kind == "self")
        before = len(prompt) + len(completion.token_ids)
        prompt = [*prompt, *completion.token_ids, 60, 61, turn]
    assert engine.prefixes.store.snapshot()["entries"] == (1 if name == "llama" else 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_is_cached_whole(llama, kind):
    engine = made(kind, llama)
    for prompt, cached in ((SYSTEM, 0), (SYSTEM, 44), (SYSTEM[:30], 29), (SYSTEM[:17], 16)):
        request = ask(prompt, kind=kind)
        completion = run(engine, request)[0]
        assert completion.usage.cached_tokens == cached
        check(completion, request, llama, kind)
    assert len(engine.prefixes.store.index) == 3  # the second left what the first had


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("moment", [3, 6, 9])
def test_a_running_row_serves(request, name, kind, moment):
    """Also what it has just put out, while its next round is in flight; neither is disturbed."""
    if name == "gemma3" and kind == "mtp":
        pytest.skip("no MTP head is known for this model")
    model = request.getfixturevalue("llama" if name == "llama" else "gemma")
    engine = made(kind, model)
    first = ask(SYSTEM, 60, kind=kind, temperature=0.5, seed=1)
    running = engine.add(first)
    chunks = [chunk for _ in range(moment) for chunk in engine.step()]
    known = [token for chunk in chunks for token in chunk.token_ids]
    second = ask([*SYSTEM, *known, 60, 61, 62], kind=kind, temperature=0.5, seed=2)
    added = engine.add(second)
    assert engine.prefix_bytes == 0
    done, _ = drain(engine, chunks)
    check(done[running], first, model)
    check(done[added], second, model)
    cached = done[added].usage.cached_tokens
    assert len(SYSTEM) + len(known) - 2 <= cached < len(second.prompt_ids)


@pytest.mark.parametrize("kind", ["lookup", "self", "mixed", "mtp"])
def test_many_at_once(llama, kind):
    """Classic and speculating requests beside each other, joining and leaving."""
    engine = made(kind, llama)
    requests = [
        ask([*SYSTEM[: 20 + 5 * (at % 6)], 51 + at, *range(at)], 8 + 5 * at, kind=kind,
            temperature=0.4 * (at % 3), seed=at)
        for at in range(10)
    ]  # fmt: skip
    requests = [
        replace(request, speculation="off") if at % 3 == 1 else request
        for at, request in enumerate(requests)
    ]
    ids, pending, done, chunks, steps = [], list(requests), {}, [], 0
    while pending or engine.busy:
        if pending and steps % 2 == 0:
            ids.append(engine.add(pending.pop(0)))
        chunks += engine.step()
        steps += 1
    done = {chunk.request_id: chunk.completion for chunk in chunks if chunk.completion}
    for request_id, request in zip(ids, requests, strict=True):
        check(done[request_id], request, llama)
    assert sum(completion.usage.cached_tokens > 0 for completion in done.values()) >= 7
    again = replace(requests[2], speculation="auto")
    completion = run(engine, again)[0]
    assert completion.usage.cached_tokens
    check(completion, again, llama, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_one_that_ends_while_others_go_on_leaves_what_it_had(request, name, kind):
    """Its row has gone before its last round is read."""
    if name == "gemma3" and kind == "mtp":
        pytest.skip("no MTP head is known for this model")
    model = request.getfixturevalue("llama" if name == "llama" else "gemma")
    engine = made(kind, model)
    long, short = ask(SYSTEM[::-1], 60, kind=kind), ask([51, 52, *SYSTEM], 9, kind=kind)
    ids = [engine.add(long), engine.add(short)]
    chunks = []
    while not any(chunk.completion for chunk in chunks):
        chunks += engine.step()
    ended = next(chunk.completion for chunk in chunks if chunk.completion)
    assert engine.scheduler.running
    assert len(engine.prefixes.store.index) == 1
    assert not engine.prefixes._parting
    after = ask([*short.prompt_ids, *ended.token_ids, 7, 8], 30, kind=kind)
    ids.append(engine.add(after))
    _, chunks = drain(engine, chunks)
    done = {chunk.request_id: chunk.completion for chunk in chunks if chunk.completion}
    assert done[ids[2]].usage.cached_tokens == 47 + 9 - 1 - (kind == "self")
    for request_id, asked in zip(ids, [long, short, after], strict=True):
        check(done[request_id], asked, model)
    if kind:
        cold = run(made(kind, model, COLD), after)[0].speculation
        assert done[ids[2]].speculation.accepted == pytest.approx(cold.accepted, abs=3)


def test_a_speculating_request_does_not_resume_without_the_drafters_caches(llama):
    for kind, cached in (("self", 0), ("mtp", 0), ("lookup", 45)):
        engine = made(kind, llama)
        run(engine, classic(ask([*SYSTEM, 51, 52])))
        request = ask([*SYSTEM, 53, 54], kind=kind)
        completion = run(engine, request)[0]
        assert completion.usage.cached_tokens == cached
        check(completion, request, llama, kind)
        other = classic(ask([*SYSTEM, 55, 56]))
        completion = run(engine, other)[0]
        assert completion.usage.cached_tokens == 45
        check(completion, other, llama)


@pytest.mark.parametrize("answered", [0, 4])
@pytest.mark.parametrize("tail", [1, 2, 9, 40])
def test_drafts_of_a_resumed_head_equal_a_fresh_computation(llama, answered, tail):
    """Not merely harmless: the head's caches hold the pairs of this prompt."""
    engine = made("mtp", llama)
    head = engine.drafter._chain.head
    before = run(engine, ask(SYSTEM, 12, kind="mtp"))[0]
    prompt = [*SYSTEM, *before.token_ids[:answered], *[(3 * i) % 50 for i in range(51, 51 + tail)]]
    plain = run(made(None, llama, COLD), ask(prompt, 40))[0]
    text = [*prompt, *plain.token_ids]
    drafter = Recording(engine.drafter._chain, text, [3, 0, 2, 1])
    engine.drafter = drafter
    completion = run(engine, ask(prompt, 40, kind="mtp"))[0]
    assert completion.usage.cached_tokens >= len(SYSTEM) + answered - 1
    assert completion.token_ids == plain.token_ids
    judged = [(length, drafts) for length, drafts in drafter.seen if length + 1 <= len(text)]
    assert len(judged) > 8
    for length, drafts in judged:
        assert drafts == drafts_afresh(llama, head, text, length, len(drafts)), length


def test_whole_chunks_in_invariant_numerics_and_equal_bits(llama):
    settings = replace(WARM, numerics="invariant")
    for kind in (None, "mtp"):
        engine = made(kind, llama, settings)
        answer = run(engine, ask(SYSTEM, 40, kind=kind))[0].token_ids
        prompt = [*SYSTEM, *answer, 51, 52]
        warm = run(engine, ask(prompt, kind=kind))[0]
        cold = run(made(kind, llama, replace(settings, prefix_bytes=0)), ask(prompt, kind=kind))[0]
        assert warm.usage.cached_tokens == 32  # of 45, in chunks of 16
        assert warm.token_ids == cold.token_ids
        assert [entry.logprob for entry in warm.logprobs] == [e.logprob for e in cold.logprobs]


def test_nothing_is_kept_where_it_is_off(llama):
    engine = made(None, llama, COLD)
    for _ in range(2):
        assert run(engine, ask(SYSTEM))[0].usage.cached_tokens == 0
    assert engine.cache_bytes == 0
    assert not any(engine.prefixes.store.snapshot().values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_request_leaves_what_it_had(llama, kind):
    engine = made(kind, llama)
    long = [*SYSTEM, *SYSTEM[::-1]]
    reading = engine.add(ask(long, kind=kind))
    for _ in range(2):  # chunks of 16
        engine.step()
    engine.cancel(reading)
    drain(engine)
    request = ask(long[:60], 40, kind=kind)
    running = engine.add(request)
    chunks = [chunk for _ in range(8) for chunk in engine.step()]
    engine.cancel(running)
    done, _ = drain(engine, chunks)
    assert done[running].usage.cached_tokens == 32
    known = done[running].token_ids
    after = ask([*long[:60], *known, 7], kind=kind)
    completion = run(engine, after)[0]
    assert completion.usage.cached_tokens == 60 + len(known) - 1 - (kind == "self")
    check(completion, after, llama, kind)


def test_one_that_ends_with_its_prompt_leaves_it(llama):
    for kind in KINDS:
        engine = made(kind, llama)
        run(engine, ask(SYSTEM, 1, kind=kind))
        request = ask([*SYSTEM, 51, 52], kind=kind)
        completion = run(engine, request)[0]
        assert completion.usage.cached_tokens == 45 - given_back(kind)
        check(completion, request, llama, kind)


def test_after_an_error_nothing_is_kept(llama, monkeypatch):
    engine = made(None, llama)
    real = Prefill.advance

    def fails(self):
        if self.done:
            raise RuntimeError("out of memory")
        real(self)

    monkeypatch.setattr(Prefill, "advance", fails)
    assert run(engine, ask(SYSTEM))[0].finish_reason == "error"
    assert engine.prefix_bytes == 0
    monkeypatch.undo()
    assert run(engine, ask(SYSTEM))[0].usage.cached_tokens == 0
    assert engine.prefix_bytes > 0
    engine.add(ask(SYSTEM))
    monkeypatch.setattr(Batch, "verify", _broken)
    with pytest.raises(EngineError):
        drain(engine)
    assert engine.prefix_bytes == 0


def _broken(*_, **__):
    raise RuntimeError("the device is lost")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_length_or_a_wrong_copy_would_be_seen(llama, kind, monkeypatch):
    """The comparison with a cold run is no formality."""
    request = ask([*SYSTEM[:30], 51, 52, 53], 40, kind=kind)
    for fault in ("none", "length", "target", "drafter"):
        engine = made(kind, llama)
        run(engine, ask(SYSTEM, kind=kind))
        (kept,) = engine.prefixes.store._kept.values()
        if fault == "length":
            monkeypatch.setattr(prefix_index, "common", lambda one, other: 32)
        copy = getattr(kept, fault, None) if fault != "length" else None
        for array in [] if copy is None else copy.state:
            array[:, :, 2:12] = 3.0
        completion = run(engine, request)[0]
        monkeypatch.undo()
        assert completion.usage.cached_tokens > 25
        if fault == "none" or (fault == "drafter" and copy is None):
            check(completion, request, llama, kind)
            continue
        with pytest.raises(AssertionError):
            check(completion, request, llama, kind)
        if fault == "drafter":  # which changes what is accepted, and no token
            check(completion, request, llama)
