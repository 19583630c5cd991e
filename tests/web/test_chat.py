"""Chat completions over a tiny model: form, equality of streams and wholes, extensions."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from mlxcel import LLM
from tests.web.support import HELLO, choices, post, streamed

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": HELLO, "max_tokens": 24, "seed": 3, "temperature": 0.9}


def text_of(objects: list[Any], index: int = 0) -> str:
    return "".join(
        each["delta"].get("content") or "" for each in choices(objects) if each["index"] == index
    )


def test_a_whole_answer_has_openais_form(tiny: FlaskClient, tiny_llm: LLM) -> None:
    got = post(tiny, PATH, ASK)
    assert got["object"] == "chat.completion"
    assert got["id"].startswith("chatcmpl-")
    assert got["model"] == "tiny"
    [choice] = got["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["logprobs"] is None
    assert choice["seed"] == 3
    alone = tiny_llm.generate(HELLO, max_tokens=24, seed=3, temperature=0.9)
    assert choice["message"]["content"] == alone.text
    assert choice["finish_reason"] == alone.finish_reason
    usage = got["usage"]
    assert usage["prompt_tokens"] == alone.usage.prompt_tokens
    assert usage["completion_tokens"] == alone.usage.completion_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert set(usage["prompt_tokens_details"]) == {"cached_tokens"}


def test_a_stream_joined_is_the_whole(tiny: FlaskClient) -> None:
    whole = post(tiny, PATH, ASK)
    objects = streamed(tiny, PATH, ASK)
    assert text_of(objects) == whole["choices"][0]["message"]["content"]
    first, last = objects[0], objects[-1]
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["choices"][0]["delta"] == {}
    assert last["timings"]["predicted_n"] == whole["usage"]["completion_tokens"]
    assert len({each["id"] for each in objects}) == 1
    assert all("usage" not in each for each in objects)
    assert [each["finish_reason"] for each in choices(objects)][:-1] == [None] * (len(objects) - 1)


def test_usage_comes_last_if_asked_for(tiny: FlaskClient) -> None:
    objects = streamed(tiny, PATH, ASK | {"stream_options": {"include_usage": True}})
    assert [each["usage"] for each in objects[:-1]] == [None] * (len(objects) - 1)
    assert objects[-1]["choices"] == []
    assert objects[-1]["usage"]["completion_tokens"] == objects[-1]["timings"]["predicted_n"]
    assert streamed(tiny, PATH, ASK | {"stream_options": {}})


def test_speculation_changes_no_text(tiny: FlaskClient) -> None:
    ask = ASK | {"max_tokens": 60, "temperature": 0}
    off = post(tiny, PATH, ask | {"speculation": "off"})
    on = post(tiny, PATH, ask | {"speculation": "on", "draft_width": 3})
    assert on["choices"][0]["message"] == off["choices"][0]["message"]
    assert off["timings"]["draft_n"] == 0
    assert off["timings"]["decision"]["run"] is False
    assert off["timings"]["decision"]["source"] == "request"
    assert on["timings"]["decision"] == on["timings"]["decision"] | {"run": True, "width": 3}
    assert set(on["timings"]["draft_widths"]) <= {"1", "2", "3"}
    assert on["timings"]["draft_kind"] == "lookup"
    details = on["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == on["timings"]["draft_n_accepted"]
    drafted = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
    assert drafted == on["timings"]["draft_n"]


def test_tokens_on_request(tiny: FlaskClient) -> None:
    ask = ASK | {"return_tokens": True, "speculation": "on", "temperature": 0, "max_tokens": 40}
    whole = post(tiny, PATH, ask)["choices"][0]
    # An answer that ends within a character has a last one that came with no token.
    joined = "".join(each["text"] for each in whole["tokens"])
    assert joined
    assert joined.rstrip("\ufffd") == whole["message"]["content"].rstrip("\ufffd")
    assert {type(each["drafted"]) for each in whole["tokens"]} == {bool}
    found = [t for each in choices(streamed(tiny, PATH, ask)) for t in each.get("tokens", [])]
    assert found == whole["tokens"]


def test_choices_have_seeds_one_after_another(tiny: FlaskClient) -> None:
    got = post(tiny, PATH, ASK | {"n": 3, "seed": 0})
    assert [each["index"] for each in got["choices"]] == [0, 1, 2]
    assert [each["seed"] for each in got["choices"]] == [0, 1, 2]
    alone = [post(tiny, PATH, ASK | {"seed": seed}) for seed in range(3)]
    texts = [each["message"]["content"] for each in got["choices"]]
    assert texts == [each["choices"][0]["message"]["content"] for each in alone]
    assert len(set(texts)) > 1
    assert got["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    parts = [each["usage"]["completion_tokens"] for each in alone]
    assert got["usage"]["completion_tokens"] == sum(parts)
    objects = streamed(tiny, PATH, ASK | {"n": 3, "seed": 0})
    assert [text_of(objects, index) for index in range(3)] == texts
    assert [each for each in objects if "timings" in each] == objects[-1:]


def test_the_largest_seed_wraps(tiny: FlaskClient) -> None:
    got = post(tiny, PATH, ASK | {"n": 2, "seed": 2**64 - 1, "max_tokens": 1})
    assert [each["seed"] for each in got["choices"]] == [2**64 - 1, 0]


def test_a_drawn_seed_is_returned_and_repeats(tiny: FlaskClient) -> None:
    ask = {name: value for name, value in ASK.items() if name != "seed"}
    drawn = post(tiny, PATH, ask)["choices"][0]
    again = post(tiny, PATH, ask | {"seed": drawn["seed"]})["choices"][0]
    assert again["message"] == drawn["message"]


@pytest.mark.parametrize("speculation", ["on", "off"])
def test_logprobs(tiny: FlaskClient, speculation: str) -> None:
    ask = ASK | {"logprobs": True, "top_logprobs": 3, "speculation": speculation}
    whole = post(tiny, PATH, ask)
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        if entry["bytes"] is not None:
            assert bytes(entry["bytes"]).decode() == entry["token"]
    assert any(entry["logprob"] < 0 for entry in content)
    parts = [each["logprobs"] for each in choices(streamed(tiny, PATH, ask)) if each["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == content
    bare = post(tiny, PATH, ASK | {"logprobs": True})["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * len(content)


@pytest.mark.parametrize("speculation", ["on", "off"])
@pytest.mark.parametrize("stream", [True, False])
def test_stop(tiny: FlaskClient, stream: bool, speculation: str) -> None:
    ask = ASK | {"temperature": 0, "speculation": speculation, "max_tokens": 40}
    full = post(tiny, PATH, ask)["choices"][0]["message"]["content"]
    stop = full[10:13]
    ask |= {"stop": ["never", stop]}
    if stream:
        objects = streamed(tiny, PATH, ask)
        text, reason = text_of(objects), objects[-1]["choices"][0]["finish_reason"]
    else:
        choice = post(tiny, PATH, ask)["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert text == full[: full.index(stop)]
    assert reason == "stop"


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_never_more_tokens_than_asked(tiny: FlaskClient, count: int) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        ask = {"messages": HELLO, name: count, "draft_width": 8}
        got = post(tiny, PATH, ask)
        assert got["usage"]["completion_tokens"] == count
        assert got["choices"][0]["finish_reason"] == "length"
        assert streamed(tiny, PATH, ask)


def test_content_parts_and_system_anywhere(tiny: FlaskClient) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    joined = post(tiny, PATH, ASK | {"messages": [{"role": "user", "content": parts}]})
    assert joined["choices"] == post(tiny, PATH, ASK)["choices"]
    turns = [*HELLO, {"role": "developer", "content": "be brief"}, *HELLO]
    assert post(tiny, PATH, ASK | {"messages": turns})["choices"]


def test_a_field_of_null_is_a_field_left_out(tiny: FlaskClient) -> None:
    nulls = {"stop": None, "tools": None, "n": None, "logit_bias": None, "stream": None}
    ignored = {"user": "ann", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    got = post(tiny, PATH, ASK | nulls | ignored | {"parallel_tool_calls": True})
    assert got["choices"] == post(tiny, PATH, ASK)["choices"]


def test_bias_and_penalties_reach_the_engine(tiny: FlaskClient) -> None:
    greedy = ASK | {"temperature": 0}

    def message(**more: Any) -> Any:
        return post(tiny, PATH, greedy | more)["choices"][0]["message"]

    plain = message()
    biased = message(logit_bias={"75": 100})
    assert biased != plain
    assert len(set(biased["content"])) == 1
    for name, value in (("presence_penalty", 2), ("repetition_penalty", 1.9), ("top_k", 1)):
        assert (message(**{name: value}) == plain) is (name == "top_k")
