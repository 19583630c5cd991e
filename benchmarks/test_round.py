"""Cost of a round by width with scripted acceptance, against products of matrices.

Every draft is accepted, so that all widths run the same number of rounds and no luck of a text
is in the time. The ratios of two widths of one model, divided by each other, are its round cost
in classic steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.model import prompt, random_head, small_model
from benchmarks.reference import Reference
from benchmarks.stepping import FIRST, Rounds
from mlxcel.config import Settings
from mlxcel.engine.alone import run_alone
from mlxcel.engine.drafters import Drafter, ModelDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import load_model
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Request, SamplingParams
from tests.support.drafters import self_chain

ROUNDS = 8
WIDEST = 8
PROMPT = 24
SETTINGS = Settings(prefix_bytes=0)

Answers = dict[tuple[int, ...], tuple[int, ...]]


def tokens(width: int, rows: int) -> int:
    """Tokens of a request that does not end while it is timed."""
    return 1 + width * (ROUNDS + FIRST + rows + 2)


def answers(
    model: LoadedModel, prompts: Sequence[tuple[int, ...]], width: int
) -> Answers:
    """Classic answers, which the scripted drafter knows; long enough for a width."""
    engine = Engine(model, None, SETTINGS)
    params = SamplingParams(max_tokens=tokens(width, len(prompts)), ignore_eos=True)
    requests = [Request(prompt_ids=each, params=params) for each in prompts]
    return {each.prompt_ids: run_alone(engine, each).token_ids for each in requests}


def time_rounds(
    measure: Any, product: Reference, model: LoadedModel, drafter: Drafter,
    prompts: Sequence[tuple[int, ...]], width: int, samples: int,
) -> None:  # fmt: skip
    """Time `ROUNDS` rounds, and check that each accepted what the script says."""
    engine = Engine(model, drafter, SETTINGS)
    params = SamplingParams(max_tokens=tokens(width, len(prompts)), ignore_eos=True)
    requests = [Request(prompt_ids=each, params=params, width=width) for each in prompts]
    rounds = Rounds(engine, requests, ROUNDS)
    emitted = measure(rounds.run, product, prepare=rounds.prepare, samples=samples)
    rounds.stop()
    assert emitted == ROUNDS * width * len(prompts)


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    """The benchmarks' own model."""
    return small_model()


@pytest.fixture(scope="module")
def answer(small: LoadedModel) -> Answers:
    """Its answer to one prompt, for every width."""
    return answers(small, [prompt(PROMPT)], WIDEST)


@pytest.mark.parametrize("width", [1, 2, 4, WIDEST])
@pytest.mark.benchmark(group="round, small model")
def test_round(
    measure: Any, product: Reference, small: LoadedModel, answer: Answers, width: int
) -> None:
    drafter = ScriptedDrafter(answer, [width], small.target.vocab_size)
    time_rounds(measure, product, small, drafter, list(answer), width, 21)


@pytest.mark.benchmark(group="round, small model")
def test_pipelined_round(
    measure: Any, product: Reference, small: LoadedModel, answer: Answers
) -> None:
    """The model drafts for itself, on the device: rounds are enqueued before the last is read."""
    drafter = ModelDrafter(self_chain(small, SETTINGS))
    time_rounds(measure, product, small, drafter, list(answer), 4, 15)


@pytest.mark.benchmark(group="round, small model")
def test_head_round(measure: Any, product: Reference, small: LoadedModel) -> None:
    """A head drafts; what it is worth does not change what a round costs."""
    engine = Engine(small, random_head(small, SETTINGS), SETTINGS)
    params = SamplingParams(max_tokens=tokens(4, 1), ignore_eos=True)
    rounds = Rounds(engine, [Request(prompt_ids=prompt(PROMPT), params=params, width=4)], ROUNDS)
    emitted = measure(rounds.run, product, prepare=rounds.prepare)
    rounds.stop()
    assert ROUNDS <= emitted <= 4 * ROUNDS


@pytest.fixture(scope="module")
def four_answers(small: LoadedModel) -> Answers:
    """Its answers to four prompts, for widths up to 4."""
    return answers(small, [prompt(PROMPT, number) for number in range(4)], 4)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.benchmark(group="round of 4 rows, small model")
def test_round_of_rows(
    measure: Any, product: Reference, small: LoadedModel, four_answers: Answers, width: int
) -> None:
    drafter = ScriptedDrafter(four_answers, [width], small.target.vocab_size)
    time_rounds(measure, product, small, drafter, list(four_answers), width, 15)


@pytest.fixture(scope="module")
def demo() -> tuple[LoadedModel, Answers]:
    """The demo model in the dense form, and its answer to a sentence."""
    model = load_model("demo", Settings.from_env(weights="dense", prefix_bytes=0))
    asked = tuple(model.tokenizer.encode("Write one sentence about the sea."))
    return model, answers(model, [asked], 4)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.benchmark(group="round, demo model")
def test_demo_round(measure: Any, product: Reference, demo: Any, width: int) -> None:
    model, known = demo
    drafter = ScriptedDrafter(known, [width], model.target.vocab_size)
    time_rounds(measure, product, model, drafter, list(known), width, 9)
