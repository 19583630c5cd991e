"""Completions: prompts of all kinds, logprobs in the old form, batches."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from mlxcel import LLM
from tests.web.support import choices, post, streamed

PATH = "/v1/completions"
ASK: dict[str, Any] = {"prompt": "hello ab", "max_tokens": 12, "seed": 1, "ignore_eos": True}


def test_a_text_and_its_ids_are_answered_alike(tiny: FlaskClient, tiny_llm: LLM) -> None:
    got = post(tiny, PATH, ASK)
    assert got["object"] == "text_completion"
    alone = tiny_llm.generate("hello ab", max_tokens=12, seed=1, temperature=1.0, ignore_eos=True)
    assert got["choices"][0]["text"] == alone.text
    ids = list(tiny_llm.encode("hello ab"))
    for prompt in (ids, [ids], ["hello ab"]):
        assert post(tiny, PATH, ASK | {"prompt": prompt})["choices"] == got["choices"]


def test_a_stream_joined_is_the_whole(tiny: FlaskClient) -> None:
    ask = ASK | {"stream_options": {"include_usage": True}, "return_tokens": True}
    objects = streamed(tiny, PATH, ask)
    whole = post(tiny, PATH, ASK | {"return_tokens": True})
    assert "".join(each["text"] for each in choices(objects)) == whole["choices"][0]["text"]
    found = [token for each in choices(objects) for token in each.get("tokens", [])]
    assert found == whole["choices"][0]["tokens"]
    assert objects[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    last = streamed(tiny, PATH, ASK)[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert "timings" in last


def test_sixteen_tokens_unless_told_otherwise(tiny: FlaskClient) -> None:
    assert post(tiny, PATH, {"prompt": "a", "ignore_eos": True})["usage"]["completion_tokens"] == 16


def test_prompts_times_n(tiny: FlaskClient) -> None:
    got = post(tiny, PATH, ASK | {"prompt": ["hello", "ab ab"], "n": 2})
    assert [each["index"] for each in got["choices"]] == [0, 1, 2, 3]
    assert [each["seed"] for each in got["choices"]] == [1, 2, 1, 2]
    ones = [
        post(tiny, PATH, ASK | {"prompt": prompt, "seed": seed})
        for prompt in ("hello", "ab ab")
        for seed in (1, 2)
    ]
    texts = [each["choices"][0]["text"] for each in ones]
    assert [each["text"] for each in got["choices"]] == texts
    prompt = ones[0]["usage"]["prompt_tokens"] + ones[2]["usage"]["prompt_tokens"]
    assert got["usage"]["prompt_tokens"] == prompt
    objects = streamed(tiny, PATH, ASK | {"prompt": ["hello", "ab ab"], "n": 2})
    for index, text in enumerate(texts):
        parts = [each["text"] for each in choices(objects) if each["index"] == index]
        assert "".join(parts) == text


@pytest.mark.parametrize("best", [0, 2])
def test_logprobs_in_the_old_form(tiny: FlaskClient, best: int) -> None:
    whole = post(tiny, PATH, ASK | {"logprobs": best})["choices"][0]
    found = whole["logprobs"]
    assert set(found) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]) == 12
    assert found["text_offset"][0] == 0
    assert found["text_offset"] == sorted(found["text_offset"])
    assert found["text_offset"][-1] <= len(whole["text"])
    if best:
        assert {len(each) for each in found["top_logprobs"]} <= {1, 2}
    else:
        assert found["top_logprobs"] is None
    parts = [each["logprobs"] for each in choices(streamed(tiny, PATH, ASK | {"logprobs": best}))]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for part in parts if part for value in part[name]] == found[name]


def test_tokenize_and_back(tiny: FlaskClient, tiny_llm: LLM) -> None:
    got = post(tiny, "/tokenize", {"prompt": "hello ab é"})
    assert tuple(got["tokens"]) == tiny_llm.encode("hello ab é")
    assert got["count"] == len(got["tokens"])
    assert got["max_model_len"] == 4096
    back = post(tiny, "/detokenize", {"tokens": got["tokens"]})
    assert back == {"prompt": "hello ab é"}
    messages = [{"role": "user", "content": "hello"}]
    chat = post(tiny, "/tokenize", {"messages": messages})
    assert tuple(chat["tokens"]) == tiny_llm.encode(messages)
    assert post(tiny, "/detokenize", {"tokens": []}) == {"prompt": ""}
