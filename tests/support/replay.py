"""Many random requests through one engine, joining, leaving and cancelled at known moments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlxcel.engine.engine import Engine
from mlxcel.engine.sequence import Phase, RequestState
from mlxcel.types import Chunk, Completion, Request, SamplingParams
from tests.support import tiny

MOMENTS = ("queued", "prefill", "first", "middle", "last")
"""Where a request may be cancelled: before its prompt is read, while it is, with one token out,
with some, and with all but one."""


@dataclass(frozen=True)
class Errand:
    """A request, and when it is cancelled."""

    request: Request
    cancel: str | None = None


@dataclass
class Answer:
    """What came of an errand: all that was shown of it, and its completion."""

    token_ids: tuple[int, ...]
    text: str
    completion: Completion


def random_params(rng: random.Random, seed: int) -> SamplingParams:
    """Any mixture of length, temperature, filters, penalties and stops."""
    penalised = rng.random() < 0.2
    return SamplingParams(
        max_tokens=rng.choice([1, 2, 3, 5, 8, 13, 21]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.3]),
        top_k=rng.choice([0, 0, 0, 7]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        repetition_penalty=1.3 if penalised else 1.0,
        frequency_penalty=0.4 if penalised else 0.0,
        logit_bias={5: -100.0, 9: 1.5} if rng.random() < 0.1 else {},
        seed=seed,
        logprobs=rng.choice([None, None, None, 2]),
        stop_token_ids=tuple(rng.sample(range(tiny.VOCAB), rng.choice([0, 0, 0, 3]))),
        stop=rng.choice([(), (), (), ("AB", "k"), ("0",)]),
    )


def random_errands(count: int, seed: int, *, longest_prompt: int = 50) -> list[Errand]:
    """Seeded errands; about a third of them are to be cancelled."""
    rng = random.Random(seed)
    errands = []
    for index in range(count):
        request = Request(
            prompt_ids=tuple(
                rng.randrange(tiny.VOCAB) for _ in range(rng.randint(1, longest_prompt))
            ),
            params=random_params(rng, seed * 100_000 + index),
            speculation=rng.choice(["auto", "auto", "auto", "off"]),
            width=rng.choice([None, 2, 3, 5, 8]),
        )
        cancel = rng.choice(MOMENTS) if rng.random() < 0.35 else None
        errands.append(Errand(request, cancel))
    return errands


def replay(engine: Engine, errands: Sequence[Errand], seed: int) -> tuple[list[Answer], Counter]:
    """Run all errands, joined at random between steps; answers in order, cancels by moment.

    Parameters
    ----------
    engine : Engine
        At rest; it is again afterwards.
    errands : sequence of Errand
        In the order of their joining.
    seed : int
        Of the joining.
    """
    rng = random.Random(seed)
    pending = list(errands)
    due: dict[int, str] = {}
    ids: list[int] = []
    chunks: dict[int, list[Chunk]] = {}
    cancelled: Counter = Counter()
    while pending or engine.busy:
        for _ in range(rng.choice([0, 0, 1, 1, 3]) if engine.busy else 1):
            if pending:
                errand = pending.pop(0)
                ids.append(engine.add(errand.request))
                chunks[ids[-1]] = []
                if errand.cancel is not None:
                    due[ids[-1]] = errand.cancel
        _cancel_due(engine, due, cancelled)
        _take(engine.step(), chunks)
    return [_answer(chunks[number]) for number in ids], cancelled


def _cancel_due(engine: Engine, due: dict[int, str], cancelled: Counter) -> None:
    for state in list(engine.scheduler.unfinished):
        moment = due.get(state.id)
        if moment is not None and _stands_at(state, moment):
            del due[state.id]
            assert engine.cancel(state.id), moment
            assert not engine.cancel(state.id), "cancelled twice"
            cancelled[moment] += 1


def _stands_at(state: RequestState, moment: str) -> bool:
    tokens, most = len(state.token_ids), state.params.max_tokens
    if moment in ("queued", "prefill"):
        return state.phase is (Phase.WAITING if moment == "queued" else Phase.PREFILL)
    if state.phase is not Phase.RUNNING:
        return False
    return {"first": tokens == 1, "middle": 1 < tokens < most - 1, "last": tokens == most - 1}[
        moment
    ]


def _take(new: Iterable[Chunk], chunks: dict[int, list[Chunk]]) -> None:
    for chunk in new:
        mine = chunks[chunk.request_id]
        assert not mine or mine[-1].completion is None, "a chunk after the last one"
        mine.append(chunk)


def _answer(chunks: Sequence[Chunk]) -> Answer:
    completion = chunks[-1].completion
    assert completion is not None, "a request without a completion"
    return Answer(
        tuple(token for chunk in chunks for token in chunk.token_ids),
        "".join(chunk.text for chunk in chunks),
        completion,
    )
