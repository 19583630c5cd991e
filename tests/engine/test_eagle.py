"""EAGLE heads in the engine: exact output, and drafts that come from nothing but the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.drafters.eagle import EagleHead
from mlxcel.models.drafters.eagle3 import Eagle3Head
from mlxcel.runtime.batch import Check
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.noise import gumbel, noise_keys, seed_words
from mlxcel.types import Request, SamplingParams
from tests.engine.test_mtp import Recording
from tests.support import tiny
from tests.support.eagle import KINDS, LAYERS, PlainHead, PlainTarget, echoing_head
from tests.support.running import classic as without
from tests.support.running import one, run

PROMPT = (3, 9, 20, 7, 11, 3, 9, 20)
SETTINGS = Settings(length_step=64, prefill_chunk=3, max_width=8)
TOKENS = 40
SCRIPT = [3, 0, 6, 1, 5, 0, 2, 4]
CALM = 0.2
HOT = {"temperature": 0.7, "seed": 5}


class Pair:
    """A target, its classic answers, and a head that some drafts are accepted of."""

    def __init__(self, kind: str, scale: float = 0.3) -> None:
        self.kind = kind
        self.model = tiny.loaded(tiny.llama_model(layers=LAYERS, scale=scale))
        self.plain = PlainTarget(self.model.target.model)
        self.head = echoing_head(kind, self.model.target)
        self.reference = PlainHead(self.head, self.plain)
        self._answers: dict[Any, Any] = {}

    def answer(self, prompt: tuple[int, ...] = PROMPT, **params: Any) -> Any:
        key = (prompt, *params.items())
        if key not in self._answers:
            engine = Engine(self.model, None, SETTINGS)
            self._answers[key] = one(engine, prompt, max_tokens=TOKENS, **params)
        return self._answers[key]

    def chain(self, settings: Settings = SETTINGS, kind: type[MtpChain] = MtpChain) -> MtpChain:
        return kind(self.head, slack=settings.max_width, length_step=settings.length_step)

    def drafter(self, settings: Settings = SETTINGS) -> MtpDrafter:
        return MtpDrafter(self.chain(settings), self.kind)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@pytest.fixture(scope="module", params=KINDS)
def calm(request: pytest.FixtureRequest) -> Pair:
    """Of a target whose texts say one thing again and again, so that some drafts are right."""
    return Pair(request.param, scale=CALM)


def chooser(pair: Pair, length: int, params: dict[str, Any]) -> Callable[[Any, int], int]:
    """Chooses a draft as a request would, from logits of the head's own vocabulary."""
    ids = np.arange(tiny.VOCAB) if pair.reference.ids is None else pair.reference.ids
    seeds = mx.array([seed_words(params.get("seed", 0))], mx.uint32)

    def choose(logits: Any, step: int) -> int:
        if params:
            at = mx.array([[length + step + 1]], mx.int32)
            noise = gumbel(noise_keys(seeds, at), mx.arange(tiny.VOCAB, dtype=mx.uint32))
            logits = logits / params["temperature"] + np.array(noise, np.float64)[0, 0][ids]
        return int(ids[np.argmax(logits)])

    return choose


def differences(
    pair: Pair,
    params: dict[str, Any] | None = None,
    *,
    width: int = 7,
    settings: Settings = SETTINGS,
    chain: MtpChain | None = None,
) -> int:
    """Rounds of a run whose drafts a computation from nothing but the text does not make.

    Whatever is drafted, the text must be the classic one; rejections are scripted.
    """
    params = params or {}
    answer = pair.answer(**params)
    text = [*PROMPT, *answer.token_ids]
    drafter = Recording(chain or pair.chain(settings), text, SCRIPT)
    twin = one(Engine(pair.model, drafter, settings), PROMPT, width, max_tokens=TOKENS, **params)
    assert twin.token_ids == answer.token_ids
    features = pair.reference.features(text)
    seen = [(at, drafts) for at, drafts in drafter.seen if at + 1 <= len(text)]
    assert len(seen) >= twin.speculation.rounds - 2 > 4
    wrong = 0
    for length, proposed in seen:
        after, choose = text[1 : length + 1], chooser(pair, length, params)
        wanted = pair.reference.chain(features[:length], after, len(proposed), choose)
        wrong += wanted != proposed
    return wrong


@pytest.mark.parametrize("params", [{}, HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_every_draft_comes_from_nothing_but_the_text(
    pair: Pair, width: int, params: dict[str, Any]
) -> None:
    """After every number of accepted drafts, and with a prompt read in chunks."""
    assert differences(pair, params, width=width) == 0


def test_passes_of_one_shape(pair: Pair) -> None:
    """What a head reads of a padded pass is the block, not the padding."""
    settings = replace(SETTINGS, numerics="invariant", default_width=8)
    assert differences(pair, width=4, settings=settings) == 0


@pytest.mark.parametrize("params", [{}, HOT], ids=["greedy", "hot"])
def test_twins_alone(calm: Pair, params: dict[str, Any]) -> None:
    answer = calm.answer(**params)
    accepted = proposed = 0
    for width in (2, 4, 8):
        engine = Engine(calm.model, calm.drafter(), SETTINGS)
        twin = one(engine, PROMPT, width, max_tokens=TOKENS, **params)
        assert twin.token_ids == answer.token_ids, width
        assert twin.speculation.kind == calm.kind
        accepted += twin.speculation.accepted
        proposed += twin.speculation.proposed
    assert accepted > 0
    assert accepted < proposed or not params


def test_twins_together(calm: Pair) -> None:
    """Rows of several widths and temperatures and classic ones in one batch."""
    cases = [(PROMPT, {}, 2), (PROMPT[2:], HOT, 8), (PROMPT, HOT, 4), (PROMPT[1:], {}, 8)]
    requests = [
        Request(
            prompt_ids=prompt, params=SamplingParams(max_tokens=TOKENS, **params), width=width
        )
        for prompt, params, width in cases
    ]
    requests.insert(1, without(requests[0]))
    cases.insert(1, cases[0])
    found = run(Engine(calm.model, calm.drafter(), SETTINGS), *requests)
    for (prompt, params, width), request, twin in zip(cases, requests, found, strict=True):
        assert twin.token_ids == calm.answer(prompt, **params).token_ids
        if request.speculation != "off" and width == 8:
            alone = one(
                Engine(calm.model, calm.drafter(), SETTINGS), prompt, width,
                max_tokens=TOKENS, **params,
            )  # fmt: skip
            assert twin.speculation.accepted == alone.speculation.accepted


def test_a_prompt_that_resumes_from_anothers_prefix(pair: Pair) -> None:
    settings = Settings(length_step=64, prefill_chunk=16, max_rows=4)
    long = tuple((5 * i * i + 3 * i) % 50 for i in range(45))
    cold = one(Engine(pair.model, pair.drafter(settings), settings), long, 4, max_tokens=20)
    engine = Engine(pair.model, pair.drafter(settings), settings)
    one(engine, (*long[:40], 1, 2, 3), 4, max_tokens=5)
    warm = one(engine, long, 4, max_tokens=20)
    assert warm.usage.cached_tokens > 0
    assert warm.token_ids == cold.token_ids
    assert warm.speculation.accepted == cold.speculation.accepted
    assert warm.speculation.rounds == cold.speculation.rounds


def test_classic_passes_keep_nothing(pair: Pair) -> None:
    """What is tapped is handed out with the pass, and not held by the target."""
    one(Engine(pair.model, pair.drafter(), SETTINGS), PROMPT, max_tokens=3)
    layers = pair.model.target.body.layers
    slots = [layer.tap_slot for layer in layers if hasattr(layer, "tap_slot")]
    assert len(slots) == len(pair.head.taps)
    assert all(slot.found is None for slot in slots)


# -- traps, put back one by one ----------------------------------------------------------


class Stale(MtpChain):
    """Does not go back after a rejection: what was rejected stays in sight."""

    def absorb(self, check: Check, *, bound: int, exact: int | None) -> None:
        super().absorb(check, bound=bound, exact=exact)
        rejected = check.packed.shape[2] - 1 - int(check.accepted[0].item())
        self.waiting.gaps = [gap - rejected for gap in self.waiting.gaps]


class Kept(MtpChain):
    """Keeps the entries that the chain made of its own states."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, refresh=False, **kwargs)


def swapped(kind: type) -> Callable[..., mx.array]:
    """Hidden state first."""

    def fuse(self: Any, hidden: mx.array, tokens: mx.array) -> mx.array:
        embedding = self._target.body.embed_tokens(tokens)
        both = mx.concatenate([hidden, embedding], axis=-1)
        return self.fc(both) if kind is EagleHead else both

    return fuse


def break_it(pair: Pair, trap: str, patch: pytest.MonkeyPatch) -> MtpChain:
    head: Any = pair.head
    kind = type(head)
    if trap == "hidden state first":
        patch.setattr(kind, "fuse", swapped(kind))
    elif trap == "no hidden_norm":
        patch.setitem(head.midlayer, "hidden_norm", nn.Identity())
    elif trap == "another layer":
        pair.model.target.tap([at + 1 for at in head.taps])
    elif trap == "offsets taken for ids":
        ids = np.array(head.draft_ids).astype(int)
        patch.setattr(head, "_draft_ids", mx.array(ids - np.arange(ids.size), mx.uint32))
    elif trap == "no bias":
        patch.setitem(head.fc, "bias", mx.zeros_like(head.fc.bias))
    elif trap == "the normed state again":
        layer = Eagle3Head.forward
        patch.setattr(kind, "forward", lambda self, *args: self.norm(layer(self, *args)))
        patch.setattr(kind, "logits", lambda self, hidden: self.lm_head(hidden))
    stale = {"a rejected draft stays": Stale, "the chain's own entries stay": Kept}
    roomy = replace(SETTINGS, length_step=512)  # for the places that are not given back
    return pair.chain(roomy, stale.get(trap, MtpChain))


BOTH = ("hidden state first", "a rejected draft stays", "the chain's own entries stay")
TRAPS = {
    "eagle": (*BOTH, "no bias"),
    "eagle3": (
        *BOTH, "no hidden_norm", "another layer", "offsets taken for ids",
        "the normed state again",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "trap"), [(k, t) for k, traps in TRAPS.items() for t in traps])
def test_a_trap_changes_drafts_and_never_the_text(
    kind: str, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(kind)
    assert differences(pair) == 0
    chain = break_it(pair, trap, monkeypatch)
    assert differences(pair, chain=chain) > 0
