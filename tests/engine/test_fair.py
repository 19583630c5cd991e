"""A long prompt among running streams: each of them waits for one chunk between two rounds."""

from __future__ import annotations

from collections import Counter

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.reading import Reading
from mlxcel.runtime.batch import Batch
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny
from tests.support.running import drain, run

CHUNK, LONG, STREAMS = 8, 100, 4
SETTINGS = Settings(length_step=128, prefill_chunk=CHUNK, max_rows=6)
CHUNKS = -(-LONG // CHUNK)


class Diary:
    """What the device was given, in order: chunks (of target and drafter) and rounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        chunk, verify = Reading.advance, Batch.verify

        def noted_chunk(reading: Reading) -> None:
            self.events.append("chunk")
            chunk(reading)

        def noted_round(batch: Batch, *args: object, **more: object) -> object:
            self.events.append(f"round of {batch.rows}")
            return verify(batch, *args, **more)

        monkeypatch.setattr(Reading, "advance", noted_chunk)
        monkeypatch.setattr(Batch, "verify", noted_round)


def running_streams(kind):
    """An engine with streams that all have begun, and their ids."""
    model = tiny.loaded(tiny.llama_model())
    drafter = None if kind == "none" else drafters.make(kind, model, SETTINGS)
    engine = Engine(model, drafter, SETTINGS)
    streams = [
        engine.add(Request(prompt_ids=(3 + at, 9), params=SamplingParams(max_tokens=400), width=2))
        for at in range(STREAMS)
    ]
    early = []
    while len(engine.scheduler.running) < STREAMS:
        early += engine.step()
    return engine, streams, early


@pytest.mark.parametrize("kind", ["none", "lookup", "mixed"])
def test_one_chunk_between_two_rounds(kind, monkeypatch):
    engine, streams, early = running_streams(kind)
    diary = Diary(monkeypatch)
    prompt = tuple((7 * at + 3) % tiny.VOCAB for at in range(LONG))
    late = Request(prompt_ids=prompt, params=SamplingParams(max_tokens=5))
    joined = engine.add(late)
    silent: Counter = Counter()  # steps without a token, in a row
    chunks, steps = list(early), 0
    while not any(chunk.request_id == joined for chunk in chunks):
        new = engine.step()
        steps += 1
        chunks += new
        spoke = {chunk.request_id for chunk in new if chunk.token_ids}
        for stream in streams:
            silent[stream] = 0 if stream in spoke else silent[stream] + 1
            assert silent[stream] == 0, "a stream was passed over"
        assert steps <= CHUNKS, "the prompt took more steps than it has chunks"
    assert diary.events.count("chunk") == CHUNKS
    assert ("chunk", "chunk") not in zip(diary.events, diary.events[1:], strict=False)
    rounds = [event for event in diary.events if event != "chunk"]
    assert set(rounds[: CHUNKS - 1]) == {f"round of {STREAMS}"}
    for stream in streams:
        assert engine.cancel(stream)
    done, _ = drain(engine, chunks)
    model = engine.model
    assert done[joined].token_ids == run(Engine(model, None, SETTINGS), late)[0].token_ids


def test_two_long_prompts_are_not_read_at_once(monkeypatch):
    engine, streams, _ = running_streams("none")
    diary = Diary(monkeypatch)
    late = [
        engine.add(
            Request(prompt_ids=tuple(range(1, 33)), params=SamplingParams(max_tokens=2))
        )
        for _ in range(2)
    ]
    unfinished = set(late)
    while unfinished:
        spoke = set()
        for chunk in engine.step():
            spoke.add(chunk.request_id)
            if chunk.completion is not None:
                unfinished.discard(chunk.request_id)
        assert spoke >= set(streams)
    assert ("chunk", "chunk") not in zip(diary.events, diary.events[1:], strict=False)
