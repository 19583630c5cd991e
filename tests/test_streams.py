"""Streams: polled, read to the end, closed, dropped."""

from __future__ import annotations

import gc
import queue
from pathlib import Path

import pytest

import mlxcel
from mlxcel.config import Settings
from mlxcel.errors import EngineError, RequestError
from mlxcel.streams import Pieces, Stream
from tests.support.checkpoints import write_tiny_llama
from tests.support.hosting import chunk


def made() -> tuple[Stream, Pieces, list[int]]:
    pieces: Pieces = queue.SimpleQueue()
    cancelled: list[int] = []
    return Stream(pieces, lambda: cancelled.append(1)), pieces, cancelled


def test_polling_waits_no_longer_than_asked() -> None:
    stream, pieces, cancelled = made()
    assert stream.poll(0.01) is None
    first, last = chunk(1), chunk(1, last=True)
    pieces.put(first)
    assert stream.poll(None) is first
    pieces.put(last)
    assert not stream.ended
    assert stream.poll(0) is last
    assert stream.ended
    with pytest.raises(EngineError, match="has ended"):
        stream.poll(0)
    assert list(stream) == []
    stream.close()
    assert cancelled == []


def test_reading_to_the_end() -> None:
    stream, pieces, _ = made()
    for each in (chunk(1), chunk(1, last=True)):
        pieces.put(each)
    assert stream.completion().text == "x"
    with pytest.raises(EngineError, match="without a completion"):
        stream.completion()


def test_an_error_ends_it() -> None:
    stream, pieces, cancelled = made()
    pieces.put(EngineError("died"))
    with pytest.raises(EngineError, match="died"):
        next(stream)
    assert list(stream) == []
    del stream
    gc.collect()
    assert cancelled == []


def test_closing_cancels_once() -> None:
    stream, pieces, cancelled = made()
    pieces.put(chunk(1))
    next(stream)
    stream.close()
    stream.close()
    assert list(stream) == []
    assert cancelled == [1]


def test_dropping_cancels() -> None:
    stream, _, cancelled = made()
    del stream
    gc.collect()
    assert cancelled == [1]


class Interrupted(queue.SimpleQueue):  # type: ignore[type-arg]
    """A wait that Ctrl-C ends."""

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_cancels() -> None:
    cancelled: list[int] = []
    stream = Stream(Interrupted(), lambda: cancelled.append(1))
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert cancelled == [1]


@pytest.mark.parametrize("tools", [True, False])
def test_tools_of_a_model(tmp_path: Path, tools: bool) -> None:
    folder = write_tiny_llama(tmp_path / "m", tools=tools)
    offered = [{"type": "function", "function": {"name": "hello"}}]
    messages = [{"role": "user", "content": "a"}]
    with mlxcel.load(folder, config=Settings(cache_dir=tmp_path)) as llm:
        facts = llm.facts
        assert facts["model"] == "m"
        assert facts["context"] == 4096
        assert facts["has_chat_template"] is llm.has_chat_template is True
        assert llm.token_texts(llm.encode("hello")) == ["hello"]
        with_tools = llm.encode(messages, tools=offered)
        assert (with_tools != llm.encode(messages)) is tools
        call = '\n{"name": "hello", "arguments": {"a": 1}}\n'
        if not tools:
            assert facts["tool_calls"] is None
            with pytest.raises(RequestError, match="no known form"):
                llm.parse_tool_call(call, offered)
            return
        assert "hello" in llm.decode(with_tools)
        form = facts["tool_calls"]
        assert (form["start"], form["end"]) == ("<tool_call>", "</tool_call>")
        assert llm.decode(form["start_ids"]) == "<tool_call>"
        assert llm.parse_tool_call(call, offered) == [{"name": "hello", "arguments": {"a": 1}}]
        for bad in ("{", '{"name": 1}', '{"name": "f", "arguments": "x"}', "[]1", '"x"'):
            with pytest.raises(RequestError, match="no tool call"):
                llm.parse_tool_call(bad, offered)
