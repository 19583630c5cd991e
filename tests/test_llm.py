"""The front door: generate and stream from any thread, cancel, close, fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlxcel
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.errors import CapacityError, EngineError, LoadError, RequestError
from mlxcel.llm import LLM
from mlxcel.types import Chunk, Completion
from tests.support import drafters, tiny
from tests.support.checkpoints import write_tiny_llama

SETTINGS = Settings(length_step=64, prefill_chunk=16)
PROMPT = [3, 9, 20, 7, 11, 3, 9, 20]
OTHER = [5, 5, 8, 13, 21, 34, 5, 5]
LONG = 100_000  # tokens: more than any test waits for


def build(drafter: str | None = "lookup", eos: tuple[int, ...] = ()) -> Engine:
    """An engine over a tiny llama; called on the engine's thread."""
    model = tiny.loaded(tiny.llama_model(), eos=eos)
    made = None if drafter is None else drafters.make(drafter, model, SETTINGS)
    return Engine(model, made, SETTINGS)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(build) as made:
        yield made


def idle(llm: LLM) -> bool:
    """Whether the engine comes to rest with every slot free."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(AssertionError):
            return llm.call(_at_rest)
        time.sleep(0.01)
    return False


def _at_rest(engine: Engine) -> bool:
    assert not engine.busy
    assert engine.scheduler.table.live == 0
    assert engine.batch.caches.nbytes == 0
    return True


def break_step(llm: LLM, error: Exception, after: int = 0, requests: int = 1) -> None:
    """Make the engine's verify pass raise, after so many good ones with all requests there."""

    def change(engine: Engine) -> None:
        verify, left = engine.batch.verify, [after]

        def broken(*args: Any, **kwargs: Any) -> Any:
            if len(list(engine.scheduler.unfinished)) >= requests:
                if left[0] == 0:
                    raise error
                left[0] -= 1
            return verify(*args, **kwargs)

        engine.batch.verify = broken  # type: ignore[method-assign]

    llm.call(change)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start work on a thread; its result or its error comes into the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - it is looked at
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_generate(llm: LLM) -> None:
    done = llm.generate(PROMPT, max_tokens=20, width=4)
    assert done.finish_reason == "length"
    assert len(done.token_ids) == len(done.drafted) == done.usage.completion_tokens == 20
    assert done.usage.prompt_tokens == len(PROMPT)
    assert done.usage.total_tokens == 28
    assert (done.error, done.logprobs) == (None, None)
    assert done.speculation.kind == "lookup"
    classic = llm.generate(PROMPT, max_tokens=20, speculation="off")
    assert (classic.text, classic.token_ids) == (done.text, done.token_ids)
    assert not classic.speculation.ran
    assert not any(classic.drafted)
    assert idle(llm)


def test_stream_is_generate_in_pieces(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=40, width=4, logprobs=2)
    chunks = list(llm.stream(PROMPT, max_tokens=40, width=4, logprobs=2))
    assert [c.completion for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1].completion
    assert last is not None
    assert "".join(c.text for c in chunks) == last.text == whole.text
    assert tuple(t for c in chunks for t in c.token_ids) == last.token_ids == whole.token_ids
    assert tuple(d for c in chunks for d in c.drafted) == last.drafted
    assert tuple(p for c in chunks for p in c.logprobs or ()) == last.logprobs
    assert len(last.logprobs or ()) == 40
    assert len({c.request_id for c in chunks}) == 1


def test_nothing_to_produce(llm: LLM) -> None:
    done = llm.generate(PROMPT, max_tokens=0)
    assert (done.text, done.token_ids, done.finish_reason) == ("", (), "length")


def test_a_stream_closed_early_is_cancelled(llm: LLM) -> None:
    chunks = llm.stream(PROMPT, max_tokens=LONG)
    assert next(chunks).token_ids
    assert llm.call(lambda engine: engine.busy)
    chunks.close()  # type: ignore[attr-defined]
    assert idle(llm)
    assert llm.call(lambda engine: engine.scheduler.table.released) == 1
    assert len(llm.generate(PROMPT, max_tokens=5).token_ids) == 5


@pytest.mark.parametrize("read", [0, 1])
def test_a_stream_that_is_dropped_is_cancelled_too(llm: LLM, read: int) -> None:
    chunks = llm.stream(PROMPT, max_tokens=LONG)
    for _ in range(read):
        next(chunks)
    del chunks
    assert idle(llm)


def test_two_threads_get_their_solo_outputs(llm: LLM) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": PROMPT, "max_tokens": 120, "width": 5, "temperature": 0.8, "seed": 4},
        {"prompt": OTHER, "max_tokens": 90, "width": 3},
    ]
    solo = [llm.generate(**kwargs) for kwargs in asked]
    gate = threading.Barrier(len(asked))

    def stream(kwargs: dict[str, Any]) -> list[Chunk]:
        gate.wait(120)
        return list(llm.stream(**kwargs))

    running = [in_thread(lambda kwargs=kwargs: stream(kwargs)) for kwargs in asked]
    for (thread, results), alone in zip(running, solo, strict=True):
        thread.join(300)
        last = results[0][-1].completion
        assert last.token_ids == alone.token_ids
        assert "".join(chunk.text for chunk in results[0]) == alone.text
    assert idle(llm)


def test_generate_many_goes_on_when_the_queue_is_full() -> None:
    settings = replace(SETTINGS, max_rows=1, max_queue=2)
    prompts = [[3 + at, 9, 20] for at in range(9)]

    def hold(engine: Engine) -> None:
        """No step before a request was refused: it is the queue that is slow, not this thread."""
        step = engine.step
        engine.step = lambda: step() if engine.metrics.refused["capacity"] else []  # type: ignore[method-assign]

    with LLM(lambda: Engine(tiny.loaded(tiny.llama_model()), None, settings)) as narrow:
        narrow.call(hold)
        many = narrow.generate_many(prompts, max_tokens=6)
        alone = [narrow.generate(prompt, max_tokens=6) for prompt in prompts]
        assert [each.token_ids for each in many] == [each.token_ids for each in alone]
        refused = narrow.call(lambda engine: engine.metrics.refused["capacity"])
        assert refused > 0
        others = [narrow.stream(PROMPT, max_tokens=LONG) for _ in range(3)]
        with pytest.raises(CapacityError, match="MLXCEL_MAX_QUEUE"):
            narrow.generate_many(prompts, max_tokens=6)
        del others


def test_generate_many_equals_one_by_one(llm: LLM) -> None:
    prompts: list[Any] = [PROMPT, OTHER, "abcabc", [1], [60] * 40]
    params: dict[str, Any] = {"max_tokens": 30, "temperature": 0.9, "seed": 3, "width": 4}
    together = llm.generate_many(prompts, **params)
    alone = [llm.generate(prompt, **params) for prompt in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.text for c in together] == [c.text for c in alone]
    assert llm.generate_many([]) == []


def test_a_bad_prompt_among_many_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate_many([PROMPT, [tiny.VOCAB]], max_tokens=LONG)
    assert idle(llm)
    with pytest.raises(RequestError, match="unknown"):
        llm.generate_many([PROMPT], max_token=LONG)


def test_an_unknown_parameter(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"'temprature'.*temperature") as caught:
        llm.generate(PROMPT, temprature=1.0)
    assert caught.value.param == "temprature"
    with pytest.raises(RequestError, match="max_tokens"):
        llm.stream(PROMPT, max_tokens=-1)  # when it is called, not at the first chunk
    with pytest.raises(RequestError, match="width 40 is above"):
        llm.generate(PROMPT, width=40)
    assert idle(llm)


def test_kinds_of_prompts(llm: LLM) -> None:
    text = "".join(chr(48 + token) for token in PROMPT)
    assert llm.encode(text) == llm.encode(PROMPT) == llm.encode(tuple(PROMPT)) == tuple(PROMPT)
    by_text = llm.generate(text, max_tokens=10)
    assert by_text.token_ids == llm.generate(PROMPT, max_tokens=10).token_ids


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1, "a"], "not a mixture"),
        ([1, {"role": "user", "content": "x"}], "not a mixture"),
        ([True, False], "not a mixture"),
        ([1.0], "not a mixture"),
        ([{"role": "user", "content": "x"}], "no chat template"),
        ("", "empty"),
        ([], "empty"),
        ([-1], "outside the vocabulary"),
        ([tiny.VOCAB], "outside the vocabulary"),
        (5, "a prompt is text"),
        (None, "a prompt is text"),
    ],
)
def test_bad_prompts(llm: LLM, prompt: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        llm.generate(prompt, max_tokens=1)


def test_chat_messages_go_through_the_template(tmp_path: Path) -> None:
    with mlxcel.load(write_tiny_llama(tmp_path / "tiny")) as llm:
        ids = llm.encode([{"role": "user", "content": "hello"}])
        text = llm.tokenizer.decode(list(ids))
        assert text == "<|turn|>user\nhello\n<|turn|>"
        assert llm.encode(text) == ids
        with pytest.raises(RequestError, match="refuses the messages: no such role") as caught:
            llm.encode([{"role": "nobody", "content": "x"}])
        assert caught.value.param == "messages"
        done = llm.generate([{"role": "user", "content": "hello"}], max_tokens=5, ignore_eos=True)
        assert done.usage.prompt_tokens == len(ids)


def test_without_a_seed_one_is_drawn_and_returned(llm: LLM) -> None:
    first = llm.generate(PROMPT, max_tokens=30, temperature=1.3)
    second = llm.generate(PROMPT, max_tokens=30, temperature=1.3)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = llm.generate(PROMPT, max_tokens=30, temperature=1.3, seed=first.seed)
    assert again.token_ids == first.token_ids
    assert llm.generate(PROMPT, max_tokens=1, seed=0).seed == 0


def test_closing_ends_a_running_stream_with_an_error() -> None:
    llm = LLM(build)
    chunks = llm.stream(PROMPT, max_tokens=LONG)
    next(chunks)
    thread, results = in_thread(lambda: list(chunks))
    llm.close()
    thread.join(300)
    assert isinstance(results[0], EngineError)
    assert "closed" in str(results[0])
    llm.close()


def test_closing_ends_those_that_wait() -> None:
    llm = LLM(build)
    running = [
        in_thread(lambda: llm.generate(PROMPT, max_tokens=LONG))
        for _ in range(SETTINGS.max_rows + 3)
    ]
    while llm.call(lambda engine: len(engine.scheduler.waiting)) < 3:
        time.sleep(0.01)
    llm.close()
    for thread, results in running:
        thread.join(300)
        assert isinstance(results[0], EngineError)


@pytest.mark.parametrize("last", ["pass", "llm.close()", "raise SystemExit(3)"])
def test_a_process_ends_well_in_the_middle_of_a_stream(tmp_path: Path, last: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    script = (
        "import mlxcel\n"
        f"llm = mlxcel.load({str(folder)!r}, 'lookup')\n"
        "chunks = llm.stream('hello', max_tokens=4000, ignore_eos=True)\n"
        "next(chunks)\n"
        f"{last}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3 if "raise" in last else 0, "")


def test_mtp_policy(llm: LLM, tmp_path: Path) -> None:
    assert llm.mtp_policy() == []  # an engine without a governor
    folder = write_tiny_llama(tmp_path / "tiny")
    settings = Settings(cache_dir=tmp_path, mtp_exactness="off")
    with mlxcel.load(folder, "lookup", config=settings) as governed:
        assert governed.mtp_policy() == []
        governed.generate(PROMPT, max_tokens=20, ignore_eos=True)
        [found] = governed.mtp_policy()
        assert (found["state"], found["width"], found["run"]) == ("profiling", 4, True)
        assert (found["target"], found["drafter"]) == ("tiny", "lookup")
        assert found["host"]
        assert "1 of 4 bursts measured" in found["reason"]
    with pytest.raises(EngineError, match="closed"):
        governed.mtp_policy()
    forced = replace(settings, enable_mtp_b1=True)
    with mlxcel.load(folder, "lookup", config=forced) as governed:
        governed.generate(PROMPT, max_tokens=20, ignore_eos=True)
        assert [each["state"] for each in governed.mtp_policy()] == ["forced"]
    with mlxcel.load(folder, None, config=settings) as classic:
        assert classic.mtp_policy() == []


def test_use_after_close() -> None:
    with LLM(build) as llm:
        chunks = llm.stream(PROMPT, max_tokens=LONG)
        next(chunks)
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate(PROMPT),
        lambda: llm.stream(PROMPT),
        lambda: llm.generate_many([PROMPT]),
        lambda: llm.call(lambda engine: engine.busy),
    ]
    for use in calls:
        with pytest.raises(EngineError, match="closed"):
            use()
    chunks.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [LoadError("weights.bin: no good"), ValueError("odd")])
def test_what_loading_raises_is_raised(error: Exception) -> None:
    def fail() -> Engine:
        raise error

    with pytest.raises(type(error)) as caught:
        LLM(fail)
    assert caught.value is error


@pytest.mark.parametrize("error", [RuntimeError("no memory"), TypeError("a bug")])
def test_a_failed_step_reaches_every_reader(llm: LLM, error: Exception) -> None:
    count = SETTINGS.max_rows + 2
    break_step(llm, error, after=20, requests=count)
    running = [in_thread(lambda: llm.generate(PROMPT, max_tokens=LONG)) for _ in range(count)]
    for thread, results in running:
        thread.join(300)
        assert not thread.is_alive()
        assert isinstance(results[0], EngineError)
        assert str(error) in str(results[0])
    with pytest.raises(EngineError, match="load the model again"):
        llm.generate(PROMPT)


def test_a_failed_step_ends_a_stream_with_its_text_so_far(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=30, speculation="off")
    break_step(llm, RuntimeError("no memory"), after=10)
    chunks = list(llm.stream(PROMPT, max_tokens=30, speculation="off"))
    last = chunks[-1].completion
    assert isinstance(last, Completion)
    assert last.finish_reason == "error"
    assert "no memory" in (last.error or "")
    count = len(last.token_ids)
    assert 0 < count < 30
    assert last.token_ids == whole.token_ids[:count]
    assert "".join(chunk.text for chunk in chunks) == last.text


def test_a_call_that_raises_harms_nobody(llm: LLM) -> None:
    def wrong(engine: Engine) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llm.call(wrong)
    assert len(llm.generate(PROMPT, max_tokens=3).token_ids) == 3
