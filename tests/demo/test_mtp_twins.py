"""The packaged head on the real checkpoint: speculative output equals classic, token for token.

The classic runs are shared: each case is decoded classic once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mlxcel.types import Completion
from tests.demo.support import PENALTIES, Demo

pytestmark = pytest.mark.demo

TOKENS = 16
WIDTHS = (2, 4, 8)
PROMPTS = {
    0.0: "Count from 30 to 40, one number on each line.",
    0.7: "Write a Python function that adds two numbers.",
    1.3: "Write one sentence about the sea.",
}


@dataclass(frozen=True)
class Case:
    """What a request asks for."""

    temperature: float
    penalised: bool

    @property
    def prompt(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": PROMPTS[self.temperature]}]

    @property
    def params(self) -> dict[str, Any]:
        plain = {"max_tokens": TOKENS, "temperature": self.temperature, "ignore_eos": True}
        seed = 5 + int(10 * self.temperature) + self.penalised
        return plain | {"seed": seed} | (PENALTIES if self.penalised else {})

    def __str__(self) -> str:
        return f"{self.temperature}-{'penalised' if self.penalised else 'plain'}"


CASES = [Case(temperature, penalised) for temperature in PROMPTS for penalised in (False, True)]
SAMPLED = Case(0.7, False)
GREEDY = Case(0.0, False)


@pytest.fixture(scope="module")
def classic(demo: Demo) -> dict[Case, Completion]:
    return {case: demo.classic(case.prompt, **case.params) for case in CASES}


@pytest.fixture
def head(demo: Demo) -> Demo:
    demo.drafter("demo")
    return demo


def check(twin: Completion, classic: Completion) -> None:
    assert twin.token_ids == classic.token_ids
    assert twin.text == classic.text
    assert twin.finish_reason == classic.finish_reason
    assert twin.speculation.kind == "mtp"
    assert twin.speculation.ran
    assert twin.speculation.accepted == sum(twin.drafted)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_alone(head: Demo, classic: dict[Case, Completion], case: Case, width: int) -> None:
    twin = head.twin(case.prompt, width, **case.params)
    check(twin, classic[case])
    if case in (GREEDY, SAMPLED):
        assert twin.speculation.accepted > 0
    if case == GREEDY:
        assert twin.speculation.width_max == width


def together(demo: Demo, asked: list[tuple[Case, dict[str, Any]]]) -> list[Completion]:
    """Run requests in one batch."""
    streams = [demo.llm.stream(case.prompt, **(case.params | more)) for case, more in asked]
    done = [list(stream)[-1].completion for stream in streams]
    return [completion for completion in done if completion is not None]


@pytest.mark.parametrize("shift", [0, 1], ids=["one-way", "another"])
def test_together(head: Demo, classic: dict[Case, Completion], shift: int) -> None:
    """Six speculating rows of all widths, and a classic one, in the same rounds."""
    widths = [WIDTHS[(at + shift) % 3] for at in range(len(CASES))]
    asked: list[tuple[Case, dict[str, Any]]] = [
        (case, {"width": width, "speculation": "on"})
        for case, width in zip(CASES, widths, strict=True)
    ]
    asked.insert(3, (SAMPLED, {"speculation": "off"}))
    done = together(head, asked)
    assert len(done) == len(asked)
    plain = done.pop(3)
    assert plain.token_ids == classic[SAMPLED].token_ids
    assert plain.speculation.accepted == 0
    for case, twin in zip(CASES, done, strict=True):
        check(twin, classic[case])


def first_seen(ids: tuple[int, ...], earliest: int) -> int:
    """Index of a token that did not occur before it."""
    return next(at for at in range(earliest, len(ids)) if ids[at] not in ids[:at])


@pytest.mark.parametrize("case", [GREEDY, SAMPLED, Case(1.3, True)], ids=str)
def test_stop_ids(head: Demo, classic: dict[Case, Completion], case: Case) -> None:
    whole = classic[case]
    at = first_seen(whole.token_ids, 6)
    stop = {"stop_token_ids": [whole.token_ids[at]]}
    wanted = head.classic(case.prompt, **case.params, **stop)
    assert wanted.token_ids == whole.token_ids[: at + 1]
    for width in WIDTHS:
        check(head.twin(case.prompt, width, **case.params, **stop), wanted)


def test_stop_ids_together(head: Demo, classic: dict[Case, Completion]) -> None:
    """Rows end in the middle of blocks while others go on."""
    ends = {case: first_seen(classic[case].token_ids, 2 + 2 * n) for n, case in enumerate(CASES)}
    asked = [
        (case, {"width": WIDTHS[n % 3], "speculation": "on",
                "stop_token_ids": [classic[case].token_ids[ends[case]]]})
        for n, case in enumerate(CASES)
    ]  # fmt: skip
    for case, twin in zip(CASES, together(head, asked), strict=True):
        assert twin.token_ids == classic[case].token_ids[: ends[case] + 1]
        assert twin.finish_reason == "stop"
