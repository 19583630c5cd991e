"""Two hundred random requests in one engine, replayed one by one: the same tokens, nothing left."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.llm import LLM
from mlxcel.models.lean import lean_modules
from mlxcel.runtime.mtp import MtpChain
from tests.engine.test_mtp import random_head
from tests.support import drafters, tiny
from tests.support.replay import MOMENTS, random_errands, replay
from tests.support.running import classic, run

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=6)
COUNT, SEED = 200, 3
KINDS = ["none", "lookup", "mixed", "mtp"]


def make_drafter(kind, model):
    if kind == "none":
        return None
    if kind == "mtp":
        head = random_head(model)
        return MtpDrafter(
            MtpChain(head, slack=SETTINGS.max_width, length_step=SETTINGS.length_step)
        )
    return drafters.make(kind, model, SETTINGS)


def lean_llama():
    """With the modules that are served on the CPU backend."""
    model = tiny.llama_model()
    lean_modules(model)
    return tiny.loaded(model, eos=(2,))


@pytest.fixture(scope="module")
def model():
    return lean_llama()


@pytest.fixture(scope="module")
def alone(model):
    """The errands, and what each of their requests gives by itself, classic."""
    engine = Engine(model, None, SETTINGS)
    errands = random_errands(COUNT, SEED)
    return errands, [run(engine, classic(errand.request))[0] for errand in errands]


def nothing_is_left(engine):
    table = engine.scheduler.table
    assert not engine.busy
    assert not engine.scheduler.unfinished
    assert table.live == 0
    assert table.admitted == table.released
    assert engine.rows.slots == []
    assert engine.batch.rows == 0
    assert engine.batch.caches.nbytes == 0
    assert engine.step() == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_its_solo_answer(model, alone, kind):
    errands, solos = alone
    engine = Engine(model, make_drafter(kind, model), SETTINGS)
    answers, cancelled = replay(engine, errands, seed=len(kind))
    nothing_is_left(engine)
    assert engine.rows.nbytes == 0 or kind == "lookup"
    assert engine.prefix_bytes <= engine.settings.prefix_bytes
    assert all(cancelled[moment] for moment in MOMENTS), cancelled
    finished = 0
    for errand, answer, solo in zip(errands, answers, solos, strict=True):
        done = answer.completion
        assert answer.token_ids == done.token_ids
        assert answer.text == done.text
        assert len(done.drafted) == len(done.token_ids)
        if done.finish_reason == "cancelled":
            assert errand.cancel is not None
            assert done.token_ids == solo.token_ids[: len(done.token_ids)]
            assert solo.text.startswith(done.text) or errand.request.params.stop
            continue
        finished += 1
        assert done.error is None
        assert done.token_ids == solo.token_ids
        assert (done.text, done.finish_reason) == (solo.text, solo.finish_reason)
        if solo.logprobs is not None:
            found = [(one.token_id, [t for t, _ in one.top]) for one in done.logprobs]
            assert found == [(one.token_id, [t for t, _ in one.top]) for one in solo.logprobs]
    assert finished + sum(cancelled.values()) == COUNT
    assert {done.finish_reason for done in solos} == {"stop", "length"}


def test_past_the_wrap_of_a_window():
    model = tiny.loaded(tiny.gemma3_model(), eos=(2,))
    engine = Engine(model, None, SETTINGS)
    errands = random_errands(24, 11, longest_prompt=70)
    solos = [run(engine, classic(errand.request))[0] for errand in errands]
    engine = Engine(model, make_drafter("lookup", model), SETTINGS)
    answers, cancelled = replay(engine, errands, seed=5)
    nothing_is_left(engine)
    assert cancelled
    for answer, solo in zip(answers, solos, strict=True):
        tokens = answer.token_ids
        whole = answer.completion.finish_reason != "cancelled"
        assert tokens == (solo.token_ids if whole else solo.token_ids[: len(tokens)])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files on Linux")
def test_threads_that_give_up_leave_nothing_behind(alone):
    """Clients of a loaded model on threads; a third of them stop reading somewhere."""
    errands, solos = alone
    errands = errands[:60]
    before, found = open_files(), {}
    # The model is made anew: what a thread made belongs to it.
    llm = LLM(
        lambda: Engine(
            lean_llama(),
            drafters.make("lookup", None, SETTINGS),
            SETTINGS,
        )
    )

    def client(first: int) -> None:
        rng = random.Random(first)
        for at in range(first, len(errands), 6):
            request, cancel = errands[at].request, errands[at].cancel
            ticket = llm._thread.submit(request)
            tokens: list[int] = []
            for chunk in llm._chunks(ticket):
                tokens += chunk.token_ids
                if cancel is not None and rng.random() < 0.3:
                    break
            found[at] = tokens

    threads = [threading.Thread(target=client, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a client waits for ever"
    llm.call(lambda engine: None)  # behind the last cancels
    while llm.call(lambda engine: engine.busy):
        pass
    llm.call(nothing_is_left)
    assert llm._thread._tickets == {}
    assert open_files() <= before
    llm.close()
    assert len(found) == len(errands)
    for at, tokens in found.items():
        solo = list(solos[at].token_ids)
        whole = errands[at].cancel is None
        assert tokens == (solo if whole else solo[: len(tokens)])
