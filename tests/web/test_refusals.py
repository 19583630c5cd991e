"""What is refused, with which words: never with 200, never silently."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.web.support import HELLO, FakeFront, post, refused

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

# Field, values that are refused.
SAMPLING: list[tuple[str, list[Any]]] = [
    ("temperature", [-1, 2.5, "1", True, []]),
    ("top_p", [-0.1, 1.1, "x", True]),
    ("top_k", [-1, 1.5, 2**63, 2**64, "5", True]),
    ("min_p", [-1, 2, "x"]),
    ("repetition_penalty", [0, -1, 1e9, "x"]),
    ("presence_penalty", [-3, 3, "x"]),
    ("frequency_penalty", [-3, 3, False]),
    ("logit_bias", [{"a": 1}, {"1": 101}, {"1": "x"}, {"-1": 1}, {"1.5": 1}, [1], {"²": 1}]),
    ("seed", [-1, 2**64, 1.5, "0", True]),
    ("stop", [1, [1], [""], "", {"a": 1}, ["x"] * 17, [None]]),
    ("max_tokens", [-1, 1.5, "5", True, 10**12, 2**63, [5]]),
    ("n", [0, -1, 9, 1.5, "2", True, 10**30]),
    ("stream", ["yes", 1, 0]),
    ("stream_options", [{}, {"include_usage": True}]),
    ("speculation", ["yes", True, 1]),
    ("draft_width", [0, 65, "4", 2.5, True]),
    ("priority", [2**31, 1.5, "high"]),
    ("timeout", [0, -1, "1", 1e9]),
    ("return_tokens", ["yes", 1]),
    ("user", [1, []]),
    ("metadata", ["x", []]),
    ("model", [1, []]),
    ("no_such_field", [1, None]),
]
OF_CHAT: list[tuple[str, list[Any]]] = [
    ("messages", [None, [], {}, "hi", [1], ["hi"], [{}], [{"role": "user"}]]),
    ("messages", [
        [{"role": "user", "content": None}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x", "more": 1}],
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": "x", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}],
    ]),
    ("logprobs", [1, 5, "true"]),
    ("top_logprobs", [1, 0, 21, True]),
    ("max_completion_tokens", [-1, "5"]),
    ("response_format", [
        {"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, "text", {},
    ]),
    ("tools", [[{}], [{"type": "web_search"}], "x"]),
    ("tool_choice", ["required", "auto", "never", {"type": "function"}, 1]),
    ("functions", [[]]),
    ("reasoning_effort", ["low"]),
    ("audio", [{}]),
    ("modalities", [["audio"], "text"]),
    ("prediction", [{"type": "content", "content": "x"}]),
    ("best_of", [1]),
    ("echo", [False]),
]  # fmt: skip
OF_TEXT: list[tuple[str, list[Any]]] = [
    ("prompt", [None, [], 5, [[]], [None], [1, "a"], ["a", 1], [-1], [True], [2**40], [1.5], {}]),
    ("logprobs", [True, -1, 21, "5"]),
    ("best_of", [2, 0, "1"]),
    ("echo", [True, "no"]),
    ("suffix", ["x", 1]),
]


def cases() -> list[Any]:
    found = []
    for path, base, table in (
        (CHAT, {"messages": HELLO}, SAMPLING + OF_CHAT),
        (TEXT, {"prompt": "a"}, SAMPLING + OF_TEXT),
    ):
        for name, values in table:
            for value in values:
                body = base | {name: value}
                found.append(pytest.param(path, body, name, id=f"{path}-{name}-{value!r:.30}"))
    return found


@pytest.mark.parametrize(("path", "body", "name"), cases())
def test_bad_fields(
    fake: FlaskClient, front: FakeFront, path: str, body: dict[str, Any], name: str
) -> None:
    error = refused(fake.post(path, json=body), 400)
    said = f"{error['param']} {error['message']}"
    assert name in said, said
    assert front.asked == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"), (b"[]", "object"), (b'"x"', "object"), (b"{", "JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"prompt": "\\ud83d"}', "UTF-8"), (b'{"prompt": NaN}', "NaN"), (b"null", "object"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "JSON"), (b"[" * 100_000, "JSON"),
        (b'{"a":' * 100_000, "JSON"), (b'\xef\xbb\xbf{"prompt": "a"}', "JSON"),
    ],
)  # fmt: skip
def test_bad_bodies(fake: FlaskClient, raw: bytes, words: str) -> None:
    response = fake.post(TEXT, data=raw, content_type="application/json")
    assert words in refused(response, 400)["message"]
    assert post(fake, TEXT, {"prompt": "a"})


def test_whole_surrogate_pairs_are_good(fake: FlaskClient, front: FakeFront) -> None:
    raw = b'{"prompt": "\\ud83d\\ude00"}'
    assert fake.post(TEXT, data=raw, content_type="application/json").status_code == 200
    assert front.asked


def test_ceilings_name_both_numbers(fake: FlaskClient) -> None:
    for body, numbers in (
        ({"prompt": "a" * 100}, ("100",)),
        ({"prompt": "a" * 101}, ("101", "100")),
        ({"prompt": "a" * 1000}, ("1000", "100")),
        ({"prompt": "a" * 99, "max_tokens": 2}, ("99", "101", "100")),
        ({"prompt": "a", "max_tokens": 10**12}, (str(10**12), "32768")),
        ({"prompt": ["a"] * 9}, ("9", "8")),
        ({"prompt": ["a"] * 3, "n": 3}, ("9", "8")),
    ):
        message = refused(fake.post(TEXT, json=body), 400)["message"]
        assert all(number in message for number in numbers), message


def test_the_default_budget_is_what_the_context_has_room_for(
    fake: FlaskClient, front: FakeFront
) -> None:
    post(fake, TEXT, {"prompt": "a" * 99})
    assert front.asked[-1]["max_tokens"] == 1
    post(fake, CHAT, {"messages": HELLO})
    assert front.asked[-1]["max_tokens"] == 95


def test_a_template_that_refuses_is_the_clients_fault(fake: FlaskClient) -> None:
    turns = [*HELLO, {"role": "system", "content": "x"}]
    error = refused(fake.post(CHAT, json={"messages": turns}), 400)
    assert error["param"] == "messages"
    assert "template" in error["message"]


def test_two_budgets_that_differ(fake: FlaskClient) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}
    assert "differ" in refused(fake.post(CHAT, json=body), 400)["message"]


def test_a_model_that_is_not_served(fake: FlaskClient) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"})):
        error = refused(fake.post(path, json=body | {"model": "gpt-9"}), 404)
        assert "gpt-9" in error["message"]
        assert "fake" in error["message"]
        assert post(fake, path, body | {"model": "fake"})
