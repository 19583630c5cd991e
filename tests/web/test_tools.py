"""Calls in what a model writes: found whole, in pieces, cut, and what only looks like one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.web.support import HELLO, FakeFront, choices, chunks, post, refused, streamed
from webapp import WebConfig, create_app
from webapp.tools import Splitter

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "other"}}
ASK: dict[str, Any] = {"messages": HELLO, "tools": [TOOL, OTHER]}
CALL = '<call>{"name": "look", "arguments": {"at": "é"}}</call>'


def parts(splitter: Splitter, pieces: list[str]) -> list[tuple[str, str]]:
    """Parts, with neighbouring texts as one."""
    found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    joined: list[tuple[str, str]] = []
    for kind, text in found:
        if joined and kind == "text" == joined[-1][0]:
            joined[-1] = ("text", joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


TEXTS = [
    ("a<call>x</call>b", "</call>", [("text", "a"), ("call", "x"), ("text", "b")]),
    ("<call>x</call><call>y</call>", "</call>", [("call", "x"), ("call", "y")]),
    ("a<cal", "</call>", [("text", "a<cal")]),
    ("a < b <c", "</call>", [("text", "a < b <c")]),
    ("<<call>x</call>", "</call>", [("text", "<"), ("call", "x")]),
    ("a<call>x</cal", "</call>", [("text", "a"), ("cut", "x</cal")]),
    ("a<call>x<call>y", "", [("text", "a"), ("call", "x"), ("call", "y")]),
    ("", "</call>", []),
]


@pytest.mark.parametrize(("text", "end", "wanted"), TEXTS)
def test_marks_are_found_however_the_text_is_cut(
    text: str, end: str, wanted: list[tuple[str, str]]
) -> None:
    cuts = range(len(text) + 1)
    for first, second in itertools.combinations_with_replacement(cuts, 2):
        pieces = [text[:first], text[first:second], text[second:]]
        assert parts(Splitter("<call>", end), pieces) == wanted
    assert parts(Splitter("<call>", end), list(text)) == wanted


def test_text_is_not_held_back_longer_than_needed() -> None:
    splitter = Splitter("<call>", "</call>")
    assert splitter.feed("so < ") == [("text", "so < ")]
    assert splitter.feed("x<ca") == [("text", "x")]
    assert splitter.feed("t") == [("text", "<cat")]


def test_a_call(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks(["so ", CALL[:20], CALL[20:]])]
    got = post(fake, CHAT, ASK)["choices"][0]
    assert got["finish_reason"] == "tool_calls"
    assert got["message"]["content"] == "so "
    [call] = got["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"at": "é"}
    assert front.template["tools"] == [TOOL, OTHER]
    objects = streamed(fake, CHAT, ASK)
    found = [each for each in choices(objects) if "tool_calls" in each["delta"]]
    [delta] = found[0]["delta"]["tool_calls"]
    assert delta["index"] == 0
    assert delta["function"] == call["function"]
    assert objects[-1]["choices"][0]["finish_reason"] == "tool_calls"
    text = "".join(each["delta"].get("content") or "" for each in choices(objects))
    assert text == "so "


def test_a_call_alone_has_no_content(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks(["\n" + CALL + "\n" + CALL])]
    got = post(fake, CHAT, ASK)["choices"][0]["message"]
    assert got["content"] is None
    assert len(got["tool_calls"]) == 2
    objects = streamed(fake, CHAT, ASK)
    numbers = [
        call["index"] for each in choices(objects) for call in each["delta"].get("tool_calls", [])
    ]
    assert numbers == [0, 1]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_the_budget_cut_is_text(
    fake: FlaskClient, front: FakeFront, stream: bool
) -> None:
    front.script = [*chunks(["so ", CALL[:-14]], "length")]
    if stream:
        objects = streamed(fake, CHAT, ASK)
        text = "".join(each["delta"].get("content") or "" for each in choices(objects))
        reason = objects[-1]["choices"][0]["finish_reason"]
    else:
        choice = post(fake, CHAT, ASK)["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert text == "so " + CALL[:-14]
    assert reason == "length"


def test_a_call_that_must_be_made_is_begun_for_the_model(
    fake: FlaskClient, front: FakeFront
) -> None:
    front.script = [*chunks([CALL.removeprefix("<call>")])]
    for choice, offered in (
        ("required", [TOOL, OTHER]),
        ({"type": "function", "function": {"name": "look"}}, [TOOL]),
    ):
        got = post(fake, CHAT, ASK | {"tool_choice": choice})["choices"][0]
        assert got["finish_reason"] == "tool_calls"
        assert front.asked[-1]["prompt"] == (1, 2, 3, 4, 5, 7, 8)
        assert front.template["tools"] == offered
    front.script = [*chunks(["not js"], "length")]
    got = post(fake, CHAT, ASK | {"tool_choice": "required"})["choices"][0]
    assert (got["message"]["content"], got["finish_reason"]) == ("<call>not js", "length")


def test_no_tools_no_calls(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks([CALL])]
    for ask in ({"messages": HELLO}, ASK | {"tool_choice": "none"}):
        got = post(fake, CHAT, ask)["choices"][0]
        assert got["message"]["content"] == CALL
        assert got["finish_reason"] == "stop"
        assert front.template["tools"] == []


def test_earlier_calls_reach_the_template_as_objects(fake: FlaskClient, front: FakeFront) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
    post(fake, CHAT, ASK | {"messages": turns})
    made = front.template["messages"]
    assert made[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert made[2] == {"role": "tool", "content": "done", "tool_call_id": "c"}


def test_a_model_without_a_form_of_calls_is_said_to_have_none() -> None:
    client = create_app(WebConfig(), engine=FakeFront(tool_calls=None)).test_client()
    error = refused(client.post(CHAT, json=ASK), 400)
    assert error["param"] == "tools"
    assert "no form of tool calls" in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "look", "strict": True}}]},
        {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
        {"tool_choice": {"type": "function", "function": {"name": "absent"}}},
        {"parallel_tool_calls": False},
    ],
)
def test_what_is_not_done_is_refused(fake: FlaskClient, more: dict[str, Any]) -> None:
    refused(fake.post(CHAT, json=ASK | more), 400)
