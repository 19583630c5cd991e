"""Records refuse bad values where they are made, and name the field."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields

import pytest

from mlxcel.errors import RequestError
from mlxcel.types import (
    Completion,
    Decision,
    Request,
    SamplingParams,
    SpecStats,
    TokenLogprob,
    Usage,
)

NUMBERS = {
    "temperature": (-0.1, 100.5),
    "top_p": (-0.1, 1.1),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0.0, 101.0),
    "presence_penalty": (-101, 101),
    "frequency_penalty": (-101, 101),
}
INTEGERS = {
    "max_tokens": (-1, 2**31),
    "top_k": (-1, 2**31),
    "seed": (-1, 2**64),
    "logprobs": (-1, 21),
}
BAD = [
    *((name, value) for name, values in NUMBERS.items() for value in values),
    *((name, value) for name in NUMBERS for value in (math.nan, math.inf, "1", None, True, [1])),
    *((name, value) for name, values in INTEGERS.items() for value in values),
    *((name, value) for name in INTEGERS for value in (1.0, "1", True, False, [1])),
    ("max_tokens", None),
    ("top_k", None),
    ("ignore_eos", 1),
    ("ignore_eos", "yes"),
    ("ignore_eos", None),
    ("logit_bias", [1, 2]),
    ("logit_bias", None),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {True: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {2**32: 1.0}),
    ("logit_bias", {5: "1"}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {5: 1e10}),
    ("stop", [""]),
    ("stop", ""),
    ("stop", [5]),
    ("stop", [b"x"]),
    ("stop", None),
    ("stop", 7),
    ("stop", ["x"] * 17),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [2**32]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", [1.0]),
    ("stop_token_ids", None),
    ("stop_token_ids", 3),
    ("stop_token_ids", [1] * 17),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (caught.value.param or "").startswith(name)


@pytest.mark.parametrize(("name", "ends"), [*NUMBERS.items(), *INTEGERS.items()])
def test_the_bounds_themselves_are_good(name: str, ends: tuple[float, float]) -> None:
    low, high = {
        "temperature": (0.0, 100),
        "top_p": (0, 1.0),
        "min_p": (0.0, 1),
        "repetition_penalty": (0.01, 100),
        "presence_penalty": (-100, 100.0),
        "frequency_penalty": (-100.0, 100),
    }.get(name, (ends[0] + 1, ends[1] - 1))
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_stops_and_bias_are_made_immutable() -> None:
    bias = {3: 1}
    params = SamplingParams(stop="END", stop_token_ids=[4, 5], logit_bias=bias)
    bias[4] = 2
    assert params.stop == ("END",)
    assert params.stop_token_ids == (4, 5)
    assert dict(params.logit_bias) == {3: 1.0}
    with pytest.raises(TypeError):
        params.logit_bias[3] = 2.0  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        params.seed = 3  # type: ignore[misc]


def test_what_counts_as_greedy_and_penalised() -> None:
    assert SamplingParams().greedy
    assert SamplingParams(temperature=1e-6).greedy
    assert not SamplingParams(temperature=0.1).greedy
    assert not SamplingParams().penalised
    for name, value in (
        ("repetition_penalty", 1.1),
        ("presence_penalty", -0.1),
        ("frequency_penalty", 0.1),
    ):
        assert SamplingParams(**{name: value}).penalised  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("prompt", {"prompt_ids": ()}),
        ("speculation", {"speculation": "maybe"}),
        ("speculation", {"speculation": None}),
        ("width", {"width": 0}),
        ("width", {"width": 1025}),
        ("width", {"width": True}),
        ("width", {"width": 4.0}),
    ],
)
def test_a_bad_request_is_refused_by_name(name: str, changes: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        Request(**{"prompt_ids": (1,), **changes})  # type: ignore[arg-type]
    assert caught.value.param == name
    assert name in str(caught.value)


def completion() -> Completion:
    stats = SpecStats(
        kind="lookup", ran=True, reason="why", rounds=2, proposed=6, accepted=3,
        emitted_from_verify=5, decode_seconds=0.5, widths=((3, 1), (4, 1)),
    )  # fmt: skip
    return Completion(
        text="ab", token_ids=(1, 2), drafted=(False, True), finish_reason="length",
        usage=Usage(3, 2), seed=7, speculation=stats,
        decision=Decision(run=True, width=4, kind="lookup", source="default", reason="why"),
        logprobs=(TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5))), TokenLogprob(2, -0.1)),
    )  # fmt: skip


def test_the_keys_of_to_dict() -> None:
    made = completion().to_dict()
    assert set(made) == {field.name for field in fields(Completion)}
    assert set(made["usage"]) == {field.name for field in fields(Usage)} | {"total_tokens"}
    ratios = {"acceptance", "emitted_per_verify", "tokens_per_second", "width_mean"}
    assert set(made["speculation"]) == {field.name for field in fields(SpecStats)} | ratios
    assert set(made["decision"]) == {"run", "width", "kind", "source", "reason", "steered"}
    assert set(made["logprobs"][0]) == {field.name for field in fields(TokenLogprob)}
    assert made["usage"]["total_tokens"] == 5
    stats = made["speculation"]
    assert [stats[name] for name in sorted(ratios)] == [0.5, 2.5, 10.0, 3.5]
    assert json.loads(json.dumps(made))["logprobs"][0]["top"] == [[1, -0.5], [2, -1.5]]


def test_ratios_of_nothing_are_zero() -> None:
    stats = SpecStats(kind="none", ran=False, reason="why")
    assert (stats.acceptance, stats.emitted_per_verify, stats.tokens_per_second) == (0.0, 0.0, 0.0)
