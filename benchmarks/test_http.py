"""What the HTTP API adds to an answer: a scripted engine, no model, no socket."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.reference import Reference
from tests.web.support import HELLO, FakeFront, chunks, post, streamed
from webapp import WebConfig, create_app

CHAT = "/v1/chat/completions"
TOKENS = 64
WHOLE, STREAMED = 10, 3
"""Requests of one sample."""


@pytest.fixture(scope="module")
def client() -> Any:
    """A client of the application over an engine that answers at once, in 64 pieces."""
    front = FakeFront(chunks(["w"] * TOKENS))
    return create_app(WebConfig(), engine=front).test_client()


@pytest.mark.benchmark(group="http", timer=time.thread_time)
def test_whole_answer(measure: Any, loop: Reference, client: Any) -> None:
    body = {"messages": HELLO, "max_tokens": TOKENS}

    def target() -> Any:
        for _ in range(WHOLE):
            answer = post(client, CHAT, body)
        return answer

    answer = measure(target, loop)
    assert answer["choices"][0]["message"]["content"] == "w" * TOKENS


@pytest.mark.benchmark(group="http", timer=time.thread_time)
def test_streamed_answer(measure: Any, loop: Reference, client: Any) -> None:
    body = {"messages": HELLO, "max_tokens": TOKENS}

    def target() -> Any:
        for _ in range(STREAMED):
            objects = streamed(client, CHAT, body)
        return objects

    objects = measure(target, loop)
    text = "".join(each["choices"][0]["delta"].get("content") or "" for each in objects)
    assert text == "w" * TOKENS


@pytest.mark.benchmark(group="http", timer=time.thread_time)
def test_refusal(measure: Any, loop: Reference, client: Any) -> None:
    """A bad body is the cheapest answer: what every request pays."""

    def target() -> int:
        status = 0
        for _ in range(WHOLE):
            status = int(client.post(CHAT, json={"messages": []}).status_code)
        return status

    assert measure(target, loop) == 400
