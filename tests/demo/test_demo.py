"""The real checkpoint: speculative output equals classic output, in ids and in text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxcel.assets import DEMO_DRAFTER
from mlxcel.config import Settings
from mlxcel.engine.prepare import _warn_of_another_target
from mlxcel.runtime.loader import load_checkpoint
from tests.demo.support import PENALTIES, Demo

pytestmark = pytest.mark.demo

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
REPEATING = [
    {
        "role": "user",
        "content": "Repeat this twice: alpha beta gamma, delta epsilon zeta, alpha beta gamma.",
    }
]
PICTURES = [
    {
        "role": "user",
        "content": "Repeat: 👩‍👧 café 日本語 🎉🎉 naïve 👩‍👧 café 日本語 🎉🎉 naïve 👩‍👧 café",
    }
]


@pytest.fixture
def lookup(demo: Demo) -> Demo:
    demo.drafter("lookup")
    return demo


@pytest.fixture
def itself(demo: Demo) -> Demo:
    demo.drafter("self")
    return demo


@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_twins_with_lookup(lookup: Demo, temperature: float, penalised: bool) -> None:
    params: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "seed": 11}
    params |= {"ignore_eos": True} | (PENALTIES if penalised else {})
    classic = lookup.classic(REPEATING, **params)
    for width in (4, 8):
        twin = lookup.twin(REPEATING, width, **params)
        assert twin.token_ids == classic.token_ids
        assert twin.text == classic.text
        assert twin.speculation.kind == "lookup"
        if temperature == 0.0 and not penalised:
            assert twin.speculation.accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_twins_with_the_target_itself(itself: Demo, temperature: float) -> None:
    params: dict[str, Any] = {"max_tokens": 41, "temperature": temperature, "seed": 11}
    params["ignore_eos"] = True
    classic = itself.classic(REPEATING, **params)
    twin = itself.twin(REPEATING, 4, **params)
    assert twin.token_ids == classic.token_ids
    assert (twin.speculation.acceptance, twin.speculation.rounds) == (1.0, 10)


@pytest.mark.parametrize("drafter", ["lookup", "self"])
def test_pictures_and_letters_of_many_bytes(demo: Demo, drafter: str) -> None:
    demo.drafter(drafter)
    classic = demo.classic(PICTURES, max_tokens=40)
    chunks = list(demo.llm.stream(PICTURES, max_tokens=40, width=5, speculation="on"))
    twin = chunks[-1].completion
    assert twin is not None
    assert "".join(chunk.text for chunk in chunks) == twin.text == classic.text
    assert twin.token_ids == classic.token_ids
    assert any(ord(letter) > 0x2000 for letter in twin.text)
    assert not any("\ufffd" in chunk.text for chunk in chunks)


def test_a_budget_that_cuts_a_picture(itself: Demo) -> None:
    whole = itself.classic(PICTURES, max_tokens=40)
    decode = itself.llm.tokenizer.decode
    cuts = [
        count
        for count in range(2, len(whole.token_ids))
        if decode(list(whole.token_ids[:count])).endswith("\ufffd")
    ]
    assert cuts, "no character of several tokens in the answer"
    for cut in cuts[:2]:
        classic = itself.classic(PICTURES, max_tokens=cut)
        twin = itself.twin(PICTURES, 5, max_tokens=cut)
        assert len(twin.token_ids) == cut
        assert (twin.text, twin.token_ids) == (classic.text, classic.token_ids)
        assert twin.finish_reason == classic.finish_reason == "length"


def test_a_stop_text_across_tokens(itself: Demo) -> None:
    whole = itself.classic(REPEATING, max_tokens=24)
    pieces = [itself.llm.tokenizer.decode([token]) for token in whole.token_ids]
    middle = len("".join(pieces[:9]))
    stop = whole.text[middle - 2 : middle + 2]
    at = whole.text.index(stop)
    classic = itself.classic(REPEATING, max_tokens=24, stop=stop)
    assert classic.text == whole.text[:at]
    for width in (2, 5, 8):
        chunks = list(
            itself.llm.stream(
                REPEATING, max_tokens=24, stop=stop, width=width, speculation="on"
            )
        )
        twin = chunks[-1].completion
        assert twin is not None
        assert "".join(chunk.text for chunk in chunks) == twin.text == classic.text
        assert (twin.token_ids, twin.finish_reason) == (classic.token_ids, "stop")
        assert twin.speculation.accepted <= twin.usage.completion_tokens


def test_a_stop_id_at_every_place_of_a_block(itself: Demo) -> None:
    whole = itself.classic(QUESTION, max_tokens=12)
    stop = whole.token_ids[6]
    assert stop not in whole.token_ids[:6], "the seventh token is not new"
    for width in range(2, 9):
        twin = itself.twin(QUESTION, width, max_tokens=12, stop_token_ids=[stop])
        assert twin.token_ids == whole.token_ids[:7]
        assert twin.finish_reason == "stop"
        assert twin.usage.completion_tokens == 7
        assert twin.speculation.emitted_from_verify == 6


def test_logprobs_inside_a_block(itself: Demo) -> None:
    params: dict[str, Any] = {"max_tokens": 25, "logprobs": 5, "temperature": 0.7, "seed": 2}
    classic = itself.classic(REPEATING, **params, **PENALTIES)
    twin = itself.twin(REPEATING, 6, **params, **PENALTIES)
    assert twin.token_ids == classic.token_ids
    assert twin.logprobs is not None
    assert classic.logprobs is not None
    assert len(twin.logprobs) == len(twin.token_ids)
    for ours, theirs, token in zip(twin.logprobs, classic.logprobs, twin.token_ids, strict=True):
        assert ours.token_id == theirs.token_id == token
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [v for _, v in ours.top] == pytest.approx([v for _, v in theirs.top], abs=1e-3)
        assert ours.top[0][0] == theirs.top[0][0]
        assert dict(ours.top).get(token, ours.logprob) == pytest.approx(ours.logprob, abs=1e-6)



def test_the_packaged_head_is_made_for_the_demo_model(
    demo_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_env()
    model = load_checkpoint("demo", cache_dir=settings.cache_dir, weights="stored")
    with caplog.at_level("WARNING", logger="mlxcel"):
        _warn_of_another_target(DEMO_DRAFTER, model)
    assert not caplog.records
