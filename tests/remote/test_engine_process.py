"""The whole of it: ``mlxcel engine`` with a tiny model, real processes, real sockets."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlxcel
from mlxcel import LLM, EngineClient
from mlxcel.cli import main
from mlxcel.config import Settings
from mlxcel.errors import CapacityError, EngineError, MlxcelError
from mlxcel.remote.wire import REQUEST_LIMIT, hello, pack
from mlxcel.types import Chunk, Completion
from tests.support.checkpoints import write_tiny_llama
from tests.support.fixed_profile import keep_profile
from tests.support.hosting import ASKED, RawClient, until
from tests.support.timing import quickest

CHAT = [{"role": "user", "content": "hello"}]
LONG = {"max_tokens": 60_000, "ignore_eos": True}  # more than any test waits for
CONTEXT = 100_000
FORCED = {
    "MLXCEL_ENABLE_MTP_B1": "true",
    "MLXCEL_MTP_EXACTNESS": "off",
    "MLXCEL_MTP_BLOCK_CONTROLLER": "requested",
}


class Running:
    """``mlxcel engine`` as a process."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.socket = work / "e.sock"
        self.out, self.err = work / "out", work / "err"
        # Streams wait unread here, and that must not end them.
        environ = os.environ | FORCED | {
            "PYTHONPATH": str(Path(mlxcel.__file__).parents[1]),
            "MLXCEL_CACHE_DIR": str(work / "cache"), "MLXCEL_CLIENT_BUFFER": "1000000",
        }  # fmt: skip
        keep_profile(folder, work / "cache")
        words = ["-m", str(folder), "--socket", str(self.socket), "--drain-seconds", "60"]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlxcel", "engine", *words],
                env=environ, stdout=out, stderr=err,
            )  # fmt: skip
        assert until(self.socket.exists, 60), self.err.read_text()

    def client(self, **options: Any) -> EngineClient:
        return EngineClient(self.socket, **options)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT)


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(folder, tmp_path_factory.mktemp("e"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def client(engine: Running) -> Iterator[EngineClient]:
    with engine.client() as made:
        yield made


@pytest.fixture(scope="module")
def llm(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    settings = Settings(
        cache_dir=tmp_path_factory.mktemp("cache"), enable_mtp_b1=True, mtp_exactness="off",
        mtp_block_controller="requested",
    )  # fmt: skip
    with mlxcel.load(folder, "lookup", config=settings) as made:
        yield made


def timeless(completion: Completion) -> Completion:
    stats = replace(
        completion.speculation, queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0
    )
    usage = replace(completion.usage, cached_tokens=0)  # the two engines have served others before
    return replace(completion, speculation=stats, usage=usage)


def idle(client: EngineClient) -> bool:
    """Whether nothing runs and nothing waits, soon."""
    return until(lambda: (lambda s: s["running"] == s["requests"] == 0)(client.status()))


def together(*works: Callable[[], Any]) -> list[Any]:
    """Results, or errors, of works on a thread each."""
    results: list[Any] = [None] * len(works)

    def run(at: int) -> None:
        try:
            results[at] = works[at]()
        except Exception as error:  # noqa: BLE001 - it is looked at
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    return results


ASKS: list[dict[str, Any]] = [
    {"prompt": "hello hello", "max_tokens": 40, "width": 4},
    {"prompt": [5, 9, 20, 5, 9, 20, 5, 9], "max_tokens": 50, "temperature": 0.8, "seed": 7},
    {"prompt": CHAT, "max_tokens": 30, "logprobs": 3, "temperature": 1.1, "seed": 2**64 - 1},
    {"prompt": "ab ab", "max_tokens": 30, "speculation": "off", "logit_bias": {20: 2.5},
     "presence_penalty": 0.5, "seed": 0, "temperature": 0.6, "top_k": 9, "stop_token_ids": (3,)},
    {"prompt": "hello", "max_tokens": 0},
]  # fmt: skip


@pytest.mark.parametrize("asked", ASKS)
def test_answers_are_those_of_an_llm(
    client: EngineClient, llm: LLM, asked: dict[str, Any]
) -> None:
    asked = {"ignore_eos": True} | asked
    here, there = llm.generate(**asked), client.generate(**asked)
    if "seed" not in asked:  # one is drawn, and greedy answers do not depend on it
        there = replace(there, seed=here.seed)
    assert timeless(there) == timeless(here)
    pieces = list(client.stream(**asked))
    last = pieces[-1].completion
    assert last is not None
    assert "".join(piece.text for piece in pieces) == last.text == here.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == here.token_ids
    if here.logprobs is not None:
        assert tuple(p for piece in pieces for p in piece.logprobs or ()) == here.logprobs


def test_many_prompts_and_the_tokenizer(client: EngineClient, llm: LLM) -> None:
    prompts: list[Any] = ["hello", [5, 6], CHAT, "ab"]
    params: dict[str, Any] = {"max_tokens": 25, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    found = client.generate_many(prompts, **params)
    assert [c.token_ids for c in found] == [
        c.token_ids for c in llm.generate_many(prompts, **params)
    ]
    assert client.generate_many([]) == []
    for prompt in prompts:
        assert client.encode(prompt) == llm.encode(prompt)
    assert client.decode(client.encode("hello ü")) == llm.decode(llm.encode("hello ü")) == "hello ü"
    assert client.has_chat_template is llm.has_chat_template is True
    assert [each["state"] for each in client.mtp_policy()] == ["forced"] * len(llm.mtp_policy())
    assert client.metrics()["running"] == 0


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("hello", {"temprature": 1.0}),
        ("hello", {"max_tokens": -1}),
        ("hello", {"width": 40}),
        ("hello", {"speculation": "maybe"}),
        ("hello", {"max_tokens": CONTEXT}),
        ("hello", {"logit_bias": {99_999: 1.0}}),
        ("", {}),
        ([], {}),
        ([10**6], {}),
        ([-1], {}),
        (5, {}),
        ([1, "a"], {}),
        ([{"role": "nobody", "content": "x"}], {}),
    ],
)
def test_bad_requests_fail_as_in_an_llm(
    client: EngineClient, llm: LLM, prompt: Any, params: dict[str, Any]
) -> None:
    def caught(front: Any) -> tuple[Any, ...]:
        with pytest.raises(MlxcelError) as found:
            front.stream(prompt, **params)
        return type(found.value), found.value.message, found.value.param

    assert caught(client) == caught(llm)
    assert idle(client)


def test_many_clients_at_once_get_their_solo_answers(
    engine: Running, client: EngineClient
) -> None:
    asks = [
        {"prompt": [5 + at, 9, 20, 5 + at], "max_tokens": 30 + at, "temperature": 0.7, "seed": at,
         "ignore_eos": True} for at in range(12)
    ]  # fmt: skip
    alone = [client.generate(**asked) for asked in asks]  # type: ignore[arg-type]

    def stream(asked: dict[str, Any]) -> list[Chunk]:
        with engine.client() as own:
            return list(own.stream(**asked))

    found = together(*(lambda asked=asked: stream(asked) for asked in asks))
    for pieces, wanted in zip(found, alone, strict=True):
        assert pieces[-1].completion.token_ids == wanted.token_ids
        assert "".join(piece.text for piece in pieces) == wanted.text


def vanish(path: Path, rng: random.Random) -> None:
    """A client that goes at some phase of its life, without a word."""
    phase = rng.randrange(7)
    raw = RawClient(path, greet=phase > 1)
    asked, more = (pack(["submit", n, ASKED | {"params": LONG}], REQUEST_LIMIT) for n in (1, 2))
    if phase == 1:
        raw.sock.sendall(pack(hello(), 999)[: rng.randrange(1, 20)])
    elif phase == 3:
        raw.sock.sendall(asked[: rng.randrange(1, len(asked))])
    elif phase > 3:
        raw.sock.sendall(asked + more * (phase > 4))
        if phase > 5:
            raw.until("accepted")
            if rng.random() < 0.6:
                raw.until("chunks")
                time.sleep(rng.random() * 0.05)
    raw.close()


def test_clients_that_vanish_leave_nothing(engine: Running, client: EngineClient) -> None:
    going = client.stream([5, 9], **LONG)
    next(going)

    def some(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            vanish(engine.socket, rng)

    def seconds_until_they_are_forgotten() -> float:
        assert together(*(lambda seed=seed: some(seed) for seed in range(4))) == [None] * 4
        began = time.monotonic()
        assert until(lambda: client.status()["requests"] == 1)
        return time.monotonic() - began

    assert quickest(seconds_until_they_are_forgotten, 2.0) < 2.0
    assert next(going).completion is None  # the one who stayed was not disturbed
    going.close()  # type: ignore[attr-defined]
    assert idle(client)
    assert client.metrics()["running"] == 0
    assert until(lambda: client.status()["clients"] == 1)
    assert len(client.generate([5, 9], max_tokens=5, ignore_eos=True).token_ids) == 5


def test_commands(engine: Running, client: EngineClient) -> None:
    path = str(engine.socket)
    shown = CliRunner().invoke(main, ["engine", "status", "--socket", path])
    assert shown.exit_code == 0
    assert "ready" in shown.stdout
    assert "metrics: running" in shown.stdout
    as_json = CliRunner().invoke(main, ["engine", "status", "--socket", path, "--json"])
    found = json.loads(as_json.stdout)
    assert (found["model"], found["running"], found["metrics"]["running"]) == ("tiny", 0, 0)
    args = ["generate", "--socket", path, "-p", "hello", "-n", "9", "--json"]
    made = CliRunner().invoke(main, args)
    assert (made.exit_code, made.stderr) == (0, "")
    assert json.loads(made.stdout)["token_ids"] == list(
        client.generate(CHAT, max_tokens=9).token_ids
    )
    refused = CliRunner().invoke(main, [*args, "--drafter", "lookup"])
    assert refused.exit_code == 2
    assert "--drafter is the engine's own" in refused.stderr
    again = CliRunner().invoke(main, ["engine", "--socket", path])
    assert again.exit_code == 2
    assert "another engine listens" in again.stderr
    assert f"ready: tiny, drafter lookup, at {path}" in engine.out.read_text()
    assert f"mlxcel generate --socket {path} -p" in engine.out.read_text()


def test_a_client_needs_no_mlx(engine: Running) -> None:
    code = (
        "import sys; from mlxcel import EngineClient\n"
        f"with EngineClient({str(engine.socket)!r}) as c: c.generate('hello', max_tokens=2)\n"
        "print([m for m in ('mlx', 'mlx.core', 'numpy', 'rich') if m in sys.modules])"
    )
    environ = os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def read_to_the_end(stream: Iterator[Chunk]) -> float:
    """When the error came that ends a stream."""
    with pytest.raises(EngineError, match="ended or died"):
        for _ in stream:
            pass
    return time.monotonic()


def kill_and_go_on(engine: Running, client: EngineClient) -> float:
    """Kill the engine under nine streams; seconds until the last of them knew it."""
    clients = [engine.client() for _ in range(8)]
    streams = [each.stream([5, 9, at], **LONG) for at, each in enumerate(clients)]
    queued = client.stream([7], **LONG)  # eight rows decode, so this one waits
    for stream in streams:
        next(stream)
    before = client.status()
    assert before["requests"] == 9

    def kill() -> float:
        time.sleep(0.1)
        now = time.monotonic()
        os.kill(before["pid"], signal.SIGKILL)
        return now

    *at, killed = together(
        *(lambda stream=stream: read_to_the_end(stream) for stream in [*streams, queued]), kill
    )
    assert [type(each) for each in at] == [float] * 9, at
    asked: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
    answers = together(*(lambda each=each: each.generate([5, 9], **asked) for each in clients))
    assert [len(answer.token_ids) for answer in answers] == [5] * 8
    assert client.status()["pid"] != before["pid"]
    for each in clients:
        each.close()
    return max(at) - killed


def test_a_killed_engine_is_seen_by_all_and_replaced(
    engine: Running, client: EngineClient
) -> None:
    assert quickest(lambda: kill_and_go_on(engine, client), 1.0) < 1.0
    said = engine.err.read_text()
    assert "mlxcel: the engine process was killed by SIGKILL" in said
    assert "it starts again" in said


def test_sigterm_drains(folder: Path, tmp_path: Path) -> None:
    """An engine of its own, which is gone afterwards."""
    engine = Running(folder, tmp_path)
    try:
        with engine.client() as client:
            drains(engine, client)
    finally:
        engine.end()


def drains(engine: Running, client: EngineClient) -> None:
    running = client.stream([5, 9], max_tokens=3000, ignore_eos=True)
    next(running)
    engine.process.terminate()
    assert until(lambda: client.status()["state"] == "draining")
    with pytest.raises(CapacityError, match="draining"):
        client.generate([5])
    last = list(running)[-1].completion
    assert last is not None
    assert last.finish_reason == "length"
    assert engine.process.wait(60) == 0
    assert not engine.socket.exists()
    with pytest.raises(EngineError, match="no engine listens"):
        client.generate([5])
    assert "draining" in engine.err.read_text()
