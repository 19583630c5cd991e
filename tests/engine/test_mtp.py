"""The MTP head inside the engine: exact output, and the drafts a fresh computation makes."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.waiting import LITTLE, WAITING
from mlxcel.types import Request, SamplingParams
from tests.support import tiny
from tests.support.running import one, run

PROMPT = (3, 9, 20, 7, 11, 3, 9, 20)
SETTINGS = Settings(length_step=64, prefill_chunk=3)
IDS = mx.array([t for t in range(tiny.VOCAB) if t % 3], dtype=mx.uint32)


def random_head(model, ids=None):
    head = MTPHead(model.target, ids)
    keys = iter(mx.random.split(mx.random.key(5), 64))

    def fill(value):
        return mx.random.normal(value.shape, key=next(keys)) * 0.3 if value.ndim > 1 else value

    from mlx.utils import tree_map

    head.update(tree_map(fill, head.parameters()))
    # Close to copying the target's hidden state, so that some drafts are accepted.
    size = head.fc.weight.shape[0]
    head.fc.weight = mx.concatenate([mx.zeros((size, size)), mx.eye(size)], axis=1)
    head.layers[0].self_attn.o_proj.weight = head.layers[0].self_attn.o_proj.weight * 0.3
    head.layers[0].mlp.down_proj.weight = head.layers[0].mlp.down_proj.weight * 0.1
    return head


class Recording(MtpDrafter):
    """Keeps what was proposed and at which length, then swaps in scripted drafts."""

    def __init__(self, chain, text, script):
        super().__init__(chain)
        self.seen, self.text, self.script = [], text, script

    def alter(self, tokens, batch):
        length = int(np.array(batch.lengths)[0])
        self.seen.append((length, np.array(tokens)[0].tolist()))
        count = tokens.shape[1]
        right = self.script[len(self.seen) % len(self.script)]
        known = [*self.text, *[0] * 20][length + 1 : length + 1 + count]
        drafts = [t if at < right else (t + 1) % tiny.VOCAB for at, t in enumerate(known)]
        return mx.array([drafts], dtype=mx.uint32)


def chain_of(head, **options):
    return MtpChain(head, slack=SETTINGS.max_width, length_step=SETTINGS.length_step, **options)


def drafts_afresh(model, head, text, length, count):
    """Drafts after ``length`` cached tokens, from nothing but the text (greedy)."""
    tokens = mx.array([text[: length + 1]], dtype=mx.uint32)
    hidden = model.target.body(tokens[:, :length])
    states, after = [hidden], [tokens[:, 1:]]
    found = []
    for _ in range(count):
        x = head.fuse(mx.concatenate(states, axis=1), mx.concatenate(after, axis=1))
        state = head.forward(x, "causal", None)[:, -1:]
        best = mx.argmax(head.logits(state), axis=-1)
        token = best if head.draft_ids is None else head.draft_ids[best]
        found.append(int(np.array(token)[0, 0]))
        states.append(state)
        after.append(token)
    return found


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "reduced"])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_drafts_equal_a_fresh_computation(width, ids):
    """After every number of accepted drafts, and with a prompt read in chunks."""
    model = tiny.loaded(tiny.llama_model())
    head = random_head(model, ids)
    classic = one(Engine(model, None, SETTINGS), PROMPT, max_tokens=60)
    text = [*PROMPT, *classic.token_ids]
    drafter = Recording(chain_of(head), text, [3, 0, 6, 1, 5, 0, 2, 4])
    completion = one(Engine(model, drafter, SETTINGS), PROMPT, width, max_tokens=60)
    assert completion.token_ids == classic.token_ids
    assert completion.speculation.accepted > 0
    checked = 0
    for length, proposed in drafter.seen:
        if length + 1 <= len(text):  # else the round after the end, in flight when it came
            assert proposed == drafts_afresh(model, head, text, length, len(proposed)), length
            checked += 1
    assert checked >= completion.speculation.rounds - 2


@pytest.mark.parametrize("steps", [1, 3, SETTINGS.max_width + 3, WAITING])
def test_drafts_after_classic_steps_equal_a_fresh_computation(steps):
    """Their pairs wait for the next draft."""
    model = tiny.loaded(tiny.llama_model())
    head = random_head(model)
    classic = one(Engine(model, None, SETTINGS), PROMPT, max_tokens=60 + 4 * steps)
    text = [*PROMPT, *classic.token_ids]
    drafter = Recording(chain_of(head), text, [3, 0, 2, 1])
    engine = Engine(model, drafter, SETTINGS)
    sampling = SamplingParams(max_tokens=60 + 4 * steps)
    engine.add(Request(prompt_ids=PROMPT, params=sampling, width=4))
    ids, paused = [], 0
    while engine.busy:
        for state in engine.scheduler.running.values():
            if len(drafter.seen) // 3 > paused:
                paused += 1
                state.probes_left = steps
        for chunk in engine.step():
            ids += chunk.token_ids
    assert ids == list(classic.token_ids)
    assert paused > 2
    lengths = [length for length, _ in drafter.seen]
    assert sum(b - a >= steps for a, b in itertools.pairwise(lengths)) >= paused - 1
    for length, proposed in drafter.seen:
        if length + 1 <= len(text):
            assert proposed == drafts_afresh(model, head, text, length, len(proposed)), length


@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_time_without_drafts_runs_no_pass_of_the_head_and_forgets_the_oldest(rows):
    """The output stays right, and the head has as many entries fewer as it has not read."""
    model = tiny.loaded(tiny.llama_model())
    head = random_head(model)
    classic = one(Engine(model, None, SETTINGS), PROMPT, max_tokens=260)
    chain = chain_of(head)
    engine = Engine(model, MtpDrafter(chain), SETTINGS)
    sampling = SamplingParams(max_tokens=260)
    numbers = [
        engine.add(Request(prompt_ids=PROMPT, params=sampling, width=4)) for _ in range(rows)
    ]
    done, passes, read, paused = {}, [], chain.read, False
    chain.read = lambda *args: passes.append(args[0].shape[1]) or read(*args)
    while engine.busy:
        states = list(engine.scheduler.running.values())
        if len(states) == rows and not paused:
            paused = True
            for state in states:
                state.probes_left = 150
        for chunk in engine.step():
            if chunk.completion:
                done[chunk.request_id] = chunk.completion
    for number in numbers:
        assert done[number].token_ids == classic.token_ids
        assert done[number].speculation.accepted > 0
    assert passes.count(WAITING) == 1  # one for 150 steps
    assert max(passes) == WAITING


def test_rows_that_join_and_leave_beside_parked_ones_cost_the_head_little():
    """To read all that waits, at every change, was a tenth of the time of 16 parked rows."""
    model = tiny.loaded(tiny.llama_model())
    params = SamplingParams(max_tokens=160)
    alone = one(Engine(model, None, SETTINGS), PROMPT, max_tokens=160)
    chain = chain_of(random_head(model))
    engine = Engine(model, MtpDrafter(chain), SETTINGS)
    engine.add(Request(prompt_ids=PROMPT, params=params, width=4))
    widths, read = [], chain.read

    def counted(hidden, tokens, frame, caches=None):
        if caches is None:
            widths.append(hidden.shape[1])
        return read(hidden, tokens, frame, caches)

    chain.read = counted
    short = Request(prompt_ids=PROMPT[2:], params=SamplingParams(max_tokens=30), width=4)
    ids, steps, joined = [], 0, 0
    while engine.busy:
        for state in engine.scheduler.running.values():
            state.probes_left = 2 if steps < 120 else 0  # parked, then drafting again
        if steps in (40, 75):
            engine.add(short)
            joined += 1
        for chunk in engine.step():
            ids += chunk.token_ids if chunk.request_id == 0 else ()
        steps += 1
        if steps == 119:
            assert joined == 2
            assert sum(widths) < 2 * LITTLE  # of some 115 pairs; the rest is forgotten
    assert ids == list(alone.token_ids)
    assert len(widths) > 10


@pytest.mark.parametrize("refresh", [True, False], ids=["refresh", "keep"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("penalised", [False, True])
def test_twin(temperature, penalised, refresh):
    model = tiny.loaded(tiny.llama_model())
    extra = {"repetition_penalty": 1.2, "frequency_penalty": 0.3} if penalised else {}
    params = {"max_tokens": 60, "temperature": temperature, "seed": 5, **extra}
    classic = one(Engine(model, None, SETTINGS), PROMPT, **params)
    head = random_head(model, IDS)
    for width in (2, 5, 8):
        engine = Engine(model, MtpDrafter(chain_of(head, refresh=refresh)), SETTINGS)
        assert one(engine, PROMPT, width, **params).token_ids == classic.token_ids
    sampling = SamplingParams(**params)
    requests = [
        Request(prompt_ids=PROMPT[skip:], params=sampling, width=width, speculation=mode)
        for skip, width, mode in [(0, 3, "on"), (3, 8, "on"), (7, None, "off"), (1, 5, "auto")]
    ]
    engine = Engine(model, MtpDrafter(chain_of(head, refresh=refresh)), SETTINGS)
    for request, twin in zip(requests, run(engine, *requests), strict=True):
        solo = Request(prompt_ids=request.prompt_ids, params=sampling)
        alone = run(Engine(model, None, SETTINGS), solo)
        assert twin.token_ids == alone[0].token_ids


def test_accepts_inside_a_batch_what_it_accepts_alone():
    """Joining, leaving and a narrow neighbour do not touch a row's own entries."""
    model = tiny.loaded(tiny.llama_model())
    head = random_head(model)
    requests = [
        Request(prompt_ids=PROMPT[skip:], params=SamplingParams(max_tokens=tokens), width=width)
        for skip, tokens, width in [(0, 50, 4), (2, 20, 2), (4, 35, 7)]
    ]
    engine = Engine(model, MtpDrafter(chain_of(head)), SETTINGS)
    for request, together in zip(requests, run(engine, *requests), strict=True):
        alone = run(Engine(model, MtpDrafter(chain_of(head)), SETTINGS), request)[0]
        assert together.token_ids == alone.token_ids
        assert together.speculation.accepted == alone.speculation.accepted
        assert together.speculation.rounds == alone.speculation.rounds
