"""What is counted: rounds, a prompt and single parts, of tiny models on the CPU device.

The counts follow from the code alone, not from the host: the default device is the CPU, weights
are seeded, and no kernel profile is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import mlx.core as mx

from benchmarks.counting import Counting, Crossings, Tally
from benchmarks.model import random_head
from benchmarks.stepping import FIRST, Rounds
from mlxcel.config import Settings
from mlxcel.engine.alone import run_alone
from mlxcel.engine.drafters import Drafter, LookupDrafter
from mlxcel.engine.engine import Engine
from mlxcel.models.joined import join_projections
from mlxcel.models.lean import lean_modules
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny

__all__ = ["CASES", "ROUNDS", "RoundCase", "count_prompt", "count_rounds"]

ROUNDS = 8
"""Rounds of each count."""
PROMPT = 18
SETTINGS = Settings(prefix_bytes=0)


@dataclass(frozen=True, kw_only=True)
class RoundCase:
    """Rounds that are all alike.

    Attributes
    ----------
    rows, width : int
        Requests together, and their block width.
    drafter : str
        ``"none"``, ``"mtp"``, or as for `tests.support.drafters.make`.
    model : callable
        Makes the model.
    params : mapping
        Of the requests.
    """

    rows: int = 1
    width: int = 1
    drafter: str = "none"
    model: Callable[[], Any] = tiny.llama_model
    params: dict[str, Any] = field(default_factory=dict)


def _lean() -> Any:
    model = tiny.llama_model()
    lean_modules(model)
    return model


def _joined() -> Any:
    model = tiny.llama_model()
    join_projections(model)
    return model


ALL_FILTERS = {
    "temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1,
}  # fmt: skip
ALWAYS = {"logit_bias": {5: 100.0}}
"""One token for ever, so that prompt lookup always finds a whole block."""

def count_rounds(case: RoundCase) -> dict[str, int]:
    """Count `ROUNDS` rounds of a case.

    Returns
    -------
    dict of str to int
        Fields of `Tally`.
    """
    with mx.stream(mx.cpu), Counting() as counting:
        engine = _engine(case, SETTINGS, counting.tally)
        rounds = Rounds(engine, _requests(case), ROUNDS)
        rounds.prepare()
        before = asdict(counting.tally)
        rounds.run()
        counted = counting.tally.since(before)
        rounds.stop()
    return counted


def count_prompt() -> dict[str, int]:
    """Count a classic request from its beginning to its first token, which is its last."""
    case = RoundCase()
    settings = replace(SETTINGS, prefill_chunk=PROMPT // 3)
    request = replace(
        _requests(case)[0], params=SamplingParams(max_tokens=1, ignore_eos=True)
    )
    with mx.stream(mx.cpu), Counting() as counting:
        engine = _engine(case, settings, counting.tally)
        before = asdict(counting.tally)
        run_alone(engine, request)
        return counting.tally.since(before)


def _engine(case: RoundCase, settings: Settings, tally: Tally) -> Engine:
    model = tiny.loaded(case.model())
    drafter: Drafter | None = None
    if case.drafter == "mtp":
        drafter = random_head(model, settings)
    elif case.drafter != "none":
        drafter = drafters.make(case.drafter, model, settings)
    if isinstance(drafter, LookupDrafter):
        drafter._index = Crossings(drafter._index, tally)  # type: ignore[assignment]
    engine = Engine(model, drafter, settings)
    engine.scheduler.table = Crossings(engine.scheduler.table, tally)  # type: ignore[assignment]
    return engine


def _requests(case: RoundCase) -> list[Request]:
    """Long enough for the rounds that rows run while others are read, and for one in flight."""
    rounds = case.rows + FIRST + ROUNDS + 2
    params = SamplingParams(
        max_tokens=case.width * rounds, ignore_eos=True, seed=1, **case.params
    )
    return [
        Request(prompt_ids=_prompt(row), params=params, width=case.width)
        for row in range(case.rows)
    ]


def _prompt(row: int) -> tuple[int, ...]:
    return tuple((3 + row + 5 * at) % tiny.VOCAB for at in range(PROMPT))


ROUND_CASES: dict[str, RoundCase] = {
    "classic": RoundCase(),
    "classic, 4 rows": RoundCase(rows=4),
    "classic, lean modules": RoundCase(model=_lean),
    "classic, joined projections": RoundCase(model=_joined),
    "classic, sliding windows": RoundCase(model=tiny.gemma3_model),
    "prompt lookup, width 4": RoundCase(width=4, drafter="lookup", params=ALWAYS),
    "head, width 4": RoundCase(width=4, drafter="mtp"),
    "head, width 4, joined projections": RoundCase(width=4, drafter="mtp", model=_joined),
    "head, width 4, 4 rows": RoundCase(rows=4, width=4, drafter="mtp"),
    "head, width 1": RoundCase(width=1, drafter="mtp"),
    "draft model, width 4": RoundCase(width=4, drafter="self"),
    "draft model, width 8": RoundCase(width=8, drafter="self"),
    "draft model, width 4, 4 rows": RoundCase(rows=4, width=4, drafter="self"),
    "draft model, width 4, all filters": RoundCase(width=4, drafter="self", params=ALL_FILTERS),
    "draft model, width 4, log-probabilities": RoundCase(
        width=4, drafter="self", params={"logprobs": 3}
    ),
    "nothing accepted, width 4": RoundCase(width=4, drafter="liar"),
}

CASES: dict[str, Callable[[], dict[str, int]]] = {
    name: functools.partial(count_rounds, case) for name, case in ROUND_CASES.items()
} | {"prompt of 3 chunks": count_prompt}
"""What gives the counters of each case."""
