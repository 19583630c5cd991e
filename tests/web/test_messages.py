"""Anthropic's messages: form, events, stop reasons."""

from __future__ import annotations

import json
from typing import Any

from flask.testing import FlaskClient

from tests.web.support import HELLO, FakeFront, chunks, events, post, refused

PATH = "/v1/messages"
ASK: dict[str, Any] = {
    "model": "tiny", "max_tokens": 20, "seed": 4, "messages": HELLO,
}  # fmt: skip


def sent(client: FlaskClient, body: dict[str, Any]) -> list[tuple[str | None, Any]]:
    response = client.post(PATH, json=body | {"stream": True})
    assert response.status_code == 200, response.get_data(as_text=True)
    return events(response.get_data(as_text=True))


def test_a_stream_joined_is_the_whole(tiny: FlaskClient) -> None:
    whole = post(tiny, PATH, ASK)
    assert whole["type"] == "message"
    assert whole["role"] == "assistant"
    [block] = whole["content"]
    found = sent(tiny, ASK)
    assert all(name == data["type"] for name, data in found)
    names = [name for name, _ in found]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    texts = [data["delta"]["text"] for _, data in found[2:-3]]
    assert "".join(texts) == block["text"]
    start, end = found[0][1]["message"], found[-2][1]
    assert start["content"] == []
    assert start["usage"]["input_tokens"] > 0
    assert end["delta"]["stop_reason"] == whole["stop_reason"]
    assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert whole["timings"]["predicted_n"] == whole["usage"]["output_tokens"]
    used = whole["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == start["usage"]["input_tokens"]


def test_system_blocks_and_results_reach_the_template(fake: FlaskClient, front: FakeFront) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "see"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "r"}]},
            {"type": "text", "text": "so?"},
        ]},
    ]  # fmt: skip
    body = ASK | {"model": "fake", "messages": turns, "system": [{"type": "text", "text": "sys"}]}
    post(fake, PATH, body)
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    assert front.template["messages"] == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "r"},
        {"role": "user", "content": "so?"},
    ]


def test_stop_reasons(fake: FlaskClient, front: FakeFront) -> None:
    ask = ASK | {"model": "fake"}
    assert post(fake, PATH, ask)["stop_reason"] == "end_turn"
    front.script = [*chunks(["ab"], "length")]
    assert post(fake, PATH, ask)["stop_reason"] == "max_tokens"
    front.script = [*chunks(["ab"], token_ids=tuple(map(ord, "abEND")))]
    got = post(fake, PATH, ask | {"stop_sequences": ["never", "END"]})
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", "END")
    assert front.asked[-1]["stop"] == ("never", "END")
    end = sent(fake, ask | {"stop_sequences": ["never"]})[-2][1]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


TOOL = {"name": "look", "input_schema": {"type": "object"}}


def test_calls(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks(["so <ca", 'll>{"name": "look", "argu', 'ments": {"at": "é"}}</call>'])]
    ask = ASK | {"model": "fake", "tools": [TOOL]}
    whole = post(fake, PATH, ask)
    assert whole["stop_reason"] == "tool_use"
    text, call = whole["content"]
    assert text == {"type": "text", "text": "so "}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "look", {"at": "é"})
    about = {"name": "look", "parameters": {"type": "object"}}
    assert front.template["tools"] == [{"type": "function", "function": about}]
    found = sent(fake, ask)
    starts = [data["content_block"] for name, data in found if name == "content_block_start"]
    assert [each["type"] for each in starts] == ["text", "tool_use"]
    assert [data["index"] for name, data in found if name == "content_block_stop"] == [0, 1]
    parts = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert json.loads(parts[-1]["partial_json"]) == {"at": "é"}
    assert found[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_errors_have_the_mark_that_its_clients_want(tiny: FlaskClient) -> None:
    response = tiny.post(PATH, json=ASK | {"model": "gpt"})
    assert refused(response, 404)["code"] == "model_not_found"
    assert response.get_json()["type"] == "error"
    for wrong in (
        {"max_tokens": None}, {"max_tokens": 0}, {"temperature": 1.5}, {"messages": []},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"mcp_servers": []},
        {"tool_choice": {"type": "any"}}, {"stop_sequences": [""]},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
    ):  # fmt: skip
        refused(tiny.post(PATH, json=ASK | wrong), 400)


def test_refusals_name_the_fields_of_this_form(fake: FlaskClient) -> None:
    for stops in ([""], ["a"] * 17):
        error = refused(fake.post(PATH, json=ASK | {"stop_sequences": stops}), 400)
        assert error["param"].startswith("stop_sequences")


def test_an_answer_that_is_begun_is_refused_not_restarted(fake: FlaskClient) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The"}]
    error = refused(fake.post(PATH, json=ASK | {"messages": begun}), 400)
    assert "end with the user" in error["message"]
