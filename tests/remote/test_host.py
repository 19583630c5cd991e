"""The host's I/O against clients that are slow, gone, wrong or hostile; the engine is scripted."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlxcel import EngineClient
from mlxcel.errors import CapacityError, ConfigError, EngineError, LoadError, RequestError
from mlxcel.remote.address import LIMIT, Listener, default_socket
from mlxcel.remote.wire import PROTOCOL, REQUEST_LIMIT, hello, pack
from tests.support.hosting import ASKED, Hosted, RawClient, chunk, hosted, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.sock"


@pytest.fixture
def up(path: Path) -> Iterator[Hosted]:
    with hosted(path) as made:
        yield made


def test_one_request_from_bytes_to_bytes(up: Hosted) -> None:
    client = RawClient(up.path)
    client.submit(7)
    assert client.next() == ["accepted", 7, 0]
    up.deliver(up.ticket(), chunk(0, "a"), chunk(0, "b"), chunk(0, "c", last=True))
    kind, chunks = client.next()
    assert kind == "chunks"  # one frame for all of a step
    assert [(number, plain[1]) for number, plain in chunks] == [(7, "a"), (7, "b"), (7, "c")]
    assert until(lambda: up.status()["requests"] == 0)
    client.submit(7)  # the number is free again
    assert client.next() == ["accepted", 7, 1]


def test_requests_share_a_connection_and_a_frame(up: Hosted) -> None:
    client = RawClient(up.path)
    client.submit(1)
    client.submit(2)
    up.ticket(1)
    by_number = {ticket.number: ticket for ticket in up.backend.tickets}  # type: ignore[attr-defined]
    by_number[1].deliver(chunk(0, "one"))
    up.deliver(by_number[2], chunk(1, "two"))
    _, chunks = client.until("chunks")
    assert [(number, plain[1]) for number, plain in chunks] == [(1, "one"), (2, "two")]


def test_who_wants_no_pieces_gets_the_end_only(up: Hosted) -> None:
    client = RawClient(up.path)
    client.submit(1, stream=False)
    up.deliver(up.ticket(), chunk(0, "a"), chunk(0, "whole", last=True))
    _, [[_, plain]] = client.until("chunks")
    assert (plain[1], plain[5][0]) == ("", "whole")


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"prompt": "bad"}, "request", "a bad prompt"),
        ({"prompt": "bug"}, "engine", "ZeroDivisionError: oh"),
        ({"params": {"top_k": "many"}}, "request", "top_k must be an integer"),
        ({"color": 1}, "request", "a request has exactly"),
    ],
)
def test_a_bad_request_ends_itself_only(
    up: Hosted, changed: dict[str, Any], code: str, said: str
) -> None:
    client = RawClient(up.path)
    client.submit(1)
    good = up.ticket()
    client.submit(2, **changed)
    kind, number, error = client.until("failed")
    assert (kind, number, error[0]) == ("failed", 2, code)
    assert said in error[1]
    up.deliver(good, chunk(0, last=True))
    assert client.until("chunks")[1][0][0] == 1
    assert up.backend.cancelled == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xff\xff\xff", "bytes"),
        (b"\x00\x00\x00\x01\xc1", "not msgpack"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes"),
        (b"\x00\x01\x86\xa0" + b"\x91" * 100_000, "not msgpack"),
        (b"\x00\x00\x00\x04\x91\xa2\xff\xfe", "not msgpack"),
        (["walk", 1], "unknown or misused message ['walk'"),
        (["submit", "one", ASKED], "unknown or misused"),
        (["cancel"], "unknown or misused"),
        (["call", 1, 2, 3], "unknown or misused"),
    ],
)
@pytest.mark.parametrize("greeted", [True, False])
def test_hostile_bytes_end_that_client_only(
    up: Hosted, data: bytes | list[Any], said: str, greeted: bool
) -> None:
    other, hostile = RawClient(up.path), RawClient(up.path, greet=greeted)
    other.submit(1)
    ticket = up.ticket()
    if isinstance(data, bytes):
        hostile.sock.sendall(data)
    else:
        hostile.say(data)
        said = said if greeted else "must be a hello"
    code, message, _ = hostile.until("refused")[1]
    assert code == "request"
    assert said in message
    with pytest.raises((EOFError, ConnectionResetError)):
        hostile.next()
    up.deliver(ticket, chunk(0, last=True))
    assert other.until("chunks")


def test_random_bytes_kill_nothing(up: Hosted) -> None:
    rng = random.Random(3)
    for _ in range(60):
        client = RawClient(up.path, greet=rng.random() < 0.5)
        client.sock.sendall(rng.choice([b"", b"\0\0\0\x20", b"\0\0\0\x05"]) + rng.randbytes(64))
        client.close()
    assert until(lambda: up.status()["clients"] == 1)


def test_a_number_in_use_is_refused(up: Hosted) -> None:
    client = RawClient(up.path)
    client.submit(1)
    ticket = up.ticket()
    client.submit(1)
    assert client.until("refused")
    assert until(lambda: up.backend.cancelled == [ticket])


def test_versions_that_differ(up: Hosted) -> None:
    client = RawClient(up.path, greet=False)
    client.say(["hello", {"protocol": PROTOCOL + 1, "version": "9.9"}])
    code, message, param = client.next()[1]
    assert (code, param) == ("request", "protocol")
    assert f"the client speaks protocol {PROTOCOL + 1} (mlxcel 9.9)" in message


def test_a_client_refuses_an_engine_of_another_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(path):
        def old(**more: Any) -> list[Any]:
            return ["hello", {"protocol": 0, "version": "0.0.1"} | more]

        monkeypatch.setattr("mlxcel.remote.host.hello", old)
        with pytest.raises(EngineError, match=r"engine speaks protocol 0 \(mlxcel 0.0.1\)"):
            EngineClient(path, wait=5)


def test_a_slow_reader_is_cancelled_and_others_go_on(up: Hosted) -> None:
    slow, quick = RawClient(up.path), RawClient(up.path)
    slow.submit(1)
    ticket = up.ticket()
    quick.submit(1)
    other = up.ticket(1)
    big = "y" * 4000  # the socket's own buffer is full after about fifty
    seen: list[str] = []
    for step in range(400):
        ticket.deliver(chunk(0, big))
        up.deliver(other, chunk(1, str(step)))
        while len(seen) <= step:  # as quick as the engine, whoever has the processor
            seen += [plain[1] for _, plain in quick.until("chunks")[1]]
    assert seen == [str(step) for step in range(400)]
    assert until(lambda: up.backend.cancelled == [ticket])
    assert ticket.withdrawn
    taken = 0
    while (message := slow.next())[0] in ("accepted", "chunks"):
        taken += len(message[1]) if message[0] == "chunks" else 0
    kind, number, error = message
    assert (kind, number, error[0]) == ("failed", 1, "capacity")
    assert "reads too slowly: 50 pieces" in error[1]
    assert 50 <= taken < 200
    assert up.status()["cancelled_slow"] == 1
    up.deliver(other, chunk(1, last=True))
    assert quick.until("chunks")


def test_who_asks_without_reading_is_not_read_any_more(up: Hosted) -> None:
    client = RawClient(up.path)
    question = pack(["call", 1, "encode", ["z" * 5000]], REQUEST_LIMIT)
    client.sock.settimeout(2)
    sent = 0
    with suppress(TimeoutError):
        while sent < 20_000:
            client.sock.sendall(question)
            sent += 1
    assert 1000 < sent < 20_000
    assert until(lambda: up.status()["clients"] == 2)  # the others are served
    client.sock.settimeout(30)
    for _ in range(sent):
        assert client.next()[:2] == ["result", 1]


def test_the_last_piece_is_delivered_to_a_slow_reader_too(up: Hosted) -> None:
    slow = RawClient(up.path)
    slow.submit(1)
    ticket = up.ticket()
    pieces = [chunk(0, "y" * 6000) for _ in range(50)]
    up.deliver(ticket, *pieces, chunk(0, last=True))
    texts = []
    while len(texts) < 51:
        texts += slow.until("chunks")[1]
    assert texts[-1][1][5] is not None


def test_a_stream_that_nobody_reads_is_cancelled_by_the_client(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        unread, read = client.stream([1]), client.stream([1])
        first, second = up.ticket(), up.ticket(1)
        for _ in range(80):
            first.deliver(chunk(0))
            up.deliver(second, chunk(1))
            assert next(read).text == "x"
        assert until(lambda: up.backend.cancelled == [first])
        with pytest.raises(CapacityError, match="read too slowly: 50 pieces"):
            assert len([next(unread) for _ in range(51)]) == 51
        up.deliver(second, chunk(1, last=True))
        assert next(read).completion is not None


def test_a_lost_connection_cancels_all_its_requests(up: Hosted) -> None:
    client = RawClient(up.path)
    for number in range(5):
        client.submit(number)
    up.ticket(4)
    client.close()
    assert until(lambda: len(up.backend.cancelled) == 5)
    assert set(up.backend.cancelled) == set(up.backend.tickets)
    assert all(ticket.withdrawn for ticket in up.backend.tickets)
    assert up.status()["requests"] == 0


def test_closing_or_dropping_a_stream_cancels_it(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        closed, dropped = client.stream([1]), client.stream([1])
        up.deliver(up.ticket(), chunk(0))
        next(closed)
        closed.close()  # type: ignore[attr-defined]
        del dropped
        gc.collect()
        assert until(lambda: len(up.backend.cancelled) == 2)
        assert up.status()["requests"] == 0


def test_questions(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        assert client.encode("hi") == ("encode", "hi", [])
        assert client.has_chat_template is False
        with pytest.raises(RequestError, match="a prompt is text"):
            client.encode(5)  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="bug failed: oh"):
            client._ask("bug")
        with pytest.raises(RequestError, match="type object cannot be sent"):
            client._ask("odd")
        status = client.status()
        assert (status["state"], status["model"]) == ("ready", "made up")
        assert status["pid"] == os.getpid()


def test_progress_reaches_those_who_wait(path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    with hosted(path, ready=False) as up:
        made: list[EngineClient] = []
        thread = threading.Thread(
            target=lambda: made.append(
                EngineClient(path, wait=10, progress=lambda *args: shown.append(args))
            )
        )
        thread.start()
        assert until(lambda: ("starting", 0, 0) in shown)
        up.host.progress("weights", 9, 9)
        assert until(lambda: ("weights", 9, 9) in shown)
        with pytest.raises(EngineError, match=r"not ready: it loads \(weights, 9 of 9\)"):
            EngineClient(path, wait=0.05)
        raw = RawClient(path)
        raw.submit(1)
        assert "is loading" in raw.until("failed")[2][1]
        with EngineClient(path, ready=False) as early:
            assert early.status()["label"] == "weights"
        up.host.ready(up.backend)
        thread.join(10)
        made[0].close()


@pytest.mark.parametrize("error", [LoadError("weights.bin: damaged"), ConfigError("no")])
def test_a_model_that_cannot_be_loaded(path: Path, error: LoadError) -> None:
    with hosted(path, ready=False) as up:
        caught: list[BaseException] = []
        shown: list[Any] = []

        def wait() -> None:
            try:
                EngineClient(path, wait=10, progress=lambda *args: shown.append(args))
            except Exception as found:  # noqa: BLE001 - it is looked at
                caught.append(found)

        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: shown)
        up.host.load_failed(error)
        thread.join(10)
        assert [(type(found), str(found)) for found in caught] == [(type(error), str(error))]
        assert until(lambda: up.ended == [os.EX_CONFIG])


def test_draining_lets_run_what_runs(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        running = client.stream([1])
        up.host.drain()
        assert until(lambda: up.states[-1]["state"] == "draining")
        with pytest.raises(CapacityError, match="draining"):
            client.generate([1])
        up.deliver(up.ticket(), chunk(0), chunk(0, last=True))
        assert [piece.text for piece in running] == ["x", "x"]
        assert until(lambda: up.ended == [os.EX_OK])
        assert until(lambda: client._link is not None and client._link.error is not None)
        assert "has shut down" in str(client._link and client._link.error)


def test_a_drain_that_takes_too_long(path: Path) -> None:
    with hosted(path, drain_seconds=0.2) as up, EngineClient(path) as client:
        running = client.stream([1])
        began = time.monotonic()
        up.host.drain()
        with pytest.raises(EngineError, match="shuts down and waits for the request no longer"):
            next(running)
        assert time.monotonic() - began > 0.15
        assert up.backend.cancelled == [up.ticket()]
        assert until(lambda: up.ended == [os.EX_OK])


def test_a_second_signal_cancels_at_once(path: Path) -> None:
    with hosted(path, drain_seconds=60.0) as up, EngineClient(path) as client:
        running = client.stream([1])
        up.host.drain()
        assert until(lambda: up.states[-1]["state"] == "draining")
        up.deliver(up.ticket(), chunk(0))
        assert next(running).text == "x"
        up.host.drain()
        with pytest.raises(EngineError, match="shuts down"):
            next(running)
        assert until(lambda: up.ended == [os.EX_OK])


def test_a_failed_engine_says_why_and_ends(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        running = client.stream([1])
        up.ticket()
        up.host.failed("a round failed: no memory")
        with pytest.raises(EngineError, match="has failed: a round failed: no memory"):
            next(running)
    assert until(lambda: up.ended == [os.EX_SOFTWARE])


def test_connections_above_the_limit_are_told(path: Path) -> None:
    with hosted(path, max_peers=3) as up:
        kept = [RawClient(path) for _ in range(3)]
        more = RawClient(path, greet=False)
        code, message, _ = more.until("refused")[1]
        assert (code, "3 connections" in message) == ("capacity", True)
        kept[0].close()
        assert until(lambda: len(up.host._door.peers) == 2)
        assert RawClient(path)


def test_use_after_close(up: Hosted) -> None:
    client = EngineClient(up.path)
    running = client.stream([1])
    client.close()
    client.close()
    with pytest.raises(EngineError, match="client is closed"):
        next(running)
    for use in (lambda: client.generate([1]), client.status, lambda: client.encode("x")):
        with pytest.raises(EngineError, match="client is closed"):
            use()


def test_a_client_that_is_forgotten_ends_its_connection(up: Hosted) -> None:
    client = EngineClient(up.path)
    assert up.status()["clients"] == 2
    del client
    gc.collect()
    assert until(lambda: up.status()["clients"] == 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_fork_makes_a_connection_of_its_own(up: Hosted) -> None:
    with EngineClient(up.path) as client:
        running = client.stream([1])
        child = os.fork()
        if child == 0:
            good = client.encode("hi") == ("encode", "hi", [])
            del running  # its parent's, which must not notice
            gc.collect()
            client.close()
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert until(lambda: up.status()["clients"] == 2)
        up.deliver(up.ticket(), chunk(0, last=True))
        assert next(running).completion is not None
        assert client.encode("hi") == ("encode", "hi", [])


def test_an_answer_that_does_not_come(up: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = up.backend.tickets
    monkeypatch.setattr(up.backend, "begin", lambda asked, ticket: taken.append(ticket))
    with EngineClient(up.path, timeout=0.1) as client:
        with pytest.raises(EngineError, match=r"did not answer in 0\.1 s"):
            client.generate([1])
        assert until(lambda: up.backend.cancelled == [up.ticket()])


# -- the socket -------------------------------------------------------------------------


def test_nobody_listens(path: Path) -> None:
    with pytest.raises(EngineError, match=r"no engine listens at .*mlxcel engine"):
        EngineClient(path)
    listener = Listener(path)
    listener.socket.close()  # as a death would: the file stays
    assert path.is_socket()
    with pytest.raises(EngineError, match="no engine listens"):
        EngineClient(path)
    os.close(listener._lock)
    with hosted(path):
        EngineClient(path).close()
    assert not path.exists()


def test_a_socket_in_use_is_refused(up: Hosted) -> None:
    with pytest.raises(CapacityError, match="another engine listens"):
        Listener(up.path)
    EngineClient(up.path).close()


def test_a_socket_of_something_else_is_left_alone(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("mlxcel.remote.address.DYING_SECONDS", 0.1)
    path.write_text("a letter")
    with pytest.raises(ConfigError, match="no socket and is left alone"):
        Listener(path)
    assert path.read_text() == "a letter"
    path.unlink()
    with hosted(path):
        (path.parent / "e.sock.lock").unlink()  # so only the answer at the socket is left to tell
        with pytest.raises(CapacityError, match="another engine listens"):
            Listener(path)


def test_only_the_owner_may_connect(up: Hosted) -> None:
    assert up.path.stat().st_mode & 0o777 == 0o600


def test_paths(tmp_path: Path) -> None:
    from mlxcel.config import Settings

    long = tmp_path / ("x" * LIMIT)
    for use in (Listener, EngineClient):
        with pytest.raises(ConfigError, match=rf"room for {LIMIT}"):
            use(long)
    settings = Settings(cache_dir=tmp_path)
    assert default_socket({"XDG_RUNTIME_DIR": str(tmp_path / "r")}, settings) == (
        tmp_path / "r" / "mlxcel.sock"
    )
    assert default_socket({"XDG_RUNTIME_DIR": "r"}, settings) == tmp_path / "mlxcel.sock"
    assert hello()[1]["protocol"] == PROTOCOL
