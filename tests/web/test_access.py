"""Keys, other origins, room, silence, and clients that go away."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from mlxcel import LLM
from mlxcel.errors import ConfigError
from mlxcel.streams import Stream
from mlxcel.types import Chunk
from tests.web.support import HELLO, FakeFront, chunks, post, refused, soon
from webapp import WebConfig, create_app
from webapp.auth import Keys
from webapp.limits import gone

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": HELLO}


class SlowFront(FakeFront):
    """Says nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: list[queue.SimpleQueue[Chunk | BaseException]] = []

    def stream(self, prompt: Any, **arguments: Any) -> Stream:
        number = len(self.queues)
        self.queues.append(queue.SimpleQueue())
        self.asked.append(arguments)
        return Stream(self.queues[number], lambda: self.cancelled.append(number))

    def finish(self, number: int = 0) -> None:
        for each in chunks(["hi"]):
            self.queues[number].put(each)


def client_of(front: Any, **config: Any) -> FlaskClient:
    return create_app(WebConfig(**config), engine=front).test_client()


# -- keys and origins ---------------------------------------------------------------------


def test_keys(front: FakeFront, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of ann\nann-1\n\nbob-2\n")
    config = WebConfig.from_env({"WEBAPP_API_KEYS_FILE": str(path)})
    assert config.api_keys == ("ann-1", "bob-2")
    client = create_app(config, engine=front).test_client()
    for headers in (
        {"Authorization": "Bearer ann-1"}, {"Authorization": "bearer  bob-2"},
        {"X-Api-Key": "bob-2"},
    ):  # fmt: skip
        assert post(client, CHAT, ASK, headers=headers)
    for headers in (
        {}, {"Authorization": "Bearer ann-"}, {"Authorization": "Basic ann-1"}, {"X-Api-Key": "x"},
        {"Authorization": "Bearer "}, {"Authorization": "Bearer # of ann"},
        {"Authorization": "Bearer é"},
    ):  # fmt: skip
        response = client.post(CHAT, json=ASK, headers=headers)
        assert refused(response, 401)["type"] == "authentication_error"
        assert response.headers["WWW-Authenticate"] == "Bearer"
    for path_of in ("/v1/models", "/v1/internal/mtp-policy", "/tokenize", "/v1/nothing"):
        refused(client.get(path_of), 401)
    for path_of in ("/health", "/metrics", "/openapi.json", "/"):
        assert client.get(path_of).status_code == 200


def test_all_keys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real: Callable[[bytes, bytes], bool] = __import__("hmac").compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        seen.append(len(a))
        return real(a, b)

    monkeypatch.setattr("webapp.auth.hmac.compare_digest", compare)
    assert Keys(("a", "b", "c")).accept("a")
    assert seen == [32, 32, 32]


def test_other_origins_only_by_name(front: FakeFront) -> None:
    origin = {"Origin": "https://a.example"}
    response = client_of(front).post(CHAT, json=ASK, headers=origin)
    assert not [name for name, _ in response.headers if name.startswith("Access-Control")]
    client = client_of(front, cors_origins=("https://a.example",), api_keys=("k",))
    preflight = client.options(CHAT, headers=origin)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
    theirs = origin | {"Access-Control-Request-Headers": "authorization,x-stainless-os"}
    allowed = client.options(CHAT, headers=theirs).headers["Access-Control-Allow-Headers"]
    assert allowed == "authorization,x-stainless-os"
    assert client.post(CHAT, json=ASK, headers=origin).headers["Access-Control-Allow-Origin"]
    other = client.options(CHAT, headers={"Origin": "https://b.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    every = client_of(front, cors_origins=("*",)).get("/health", headers=origin)
    assert every.headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert every.headers["Vary"] == "Origin"


# -- room ---------------------------------------------------------------------------------


def test_no_room_is_said_before_any_work_and_ends() -> None:
    front = SlowFront()
    client = client_of(front, max_running=1, keep_alive=0.05)
    first = client.post(CHAT, json=ASK | {"stream": True}, buffered=False)
    response = client.post(CHAT, json=ASK)
    assert "1 requests" in refused(response, 429)["message"]
    assert response.headers["Retry-After"]
    assert len(front.asked) == 1
    assert client.get("/health").status_code == 200
    front.finish()
    assert "[DONE]" in first.get_data(as_text=True)
    front_done = client.post(CHAT, json=ASK | {"stream": True}, buffered=False)
    front.finish(1)
    assert "[DONE]" in front_done.get_data(as_text=True)


def test_a_refused_request_gives_its_place_back(front: FakeFront) -> None:
    client = client_of(front, max_running=1)
    for _ in range(3):
        refused(client.post(CHAT, json=ASK | {"max_tokens": 1000}), 400)
        assert post(client, CHAT, ASK | {"n": 3})


# -- silence and absence ------------------------------------------------------------------


def test_silent_streams_get_comments() -> None:
    front = SlowFront()
    client = client_of(front, keep_alive=0.05)
    response = client.post(CHAT, json=ASK | {"stream": True}, buffered=False)
    frames = response.iter_encoded()
    assert next(iter(frames)) == b": keep-alive\n\n"
    front.finish()
    assert b"[DONE]" in b"".join(frames)
    response.close()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("begun", [True, False])
def test_a_closed_stream_is_cancelled(count: int, begun: bool) -> None:
    front = SlowFront()
    app = create_app(WebConfig(keep_alive=0.05, max_running=1), engine=front)
    body = ASK | {"stream": True, "n": count}
    for _ in range(2):  # the place is free again
        front.cancelled.clear()
        with app.test_request_context(CHAT, method="POST", json=body):
            response = app.full_dispatch_request()
            if begun:
                assert next(iter(response.iter_encoded())) == b": keep-alive\n\n"
            assert front.cancelled == []
            response.close()
        assert len(front.cancelled) == count


def test_who_has_gone_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            assert not gone({"gunicorn.socket": ours})
            theirs.send(b"x")
            assert not gone({"gunicorn.socket": ours})
            assert ours.recv(1) == b"x"  # it was only looked at
        assert gone({"gunicorn.socket": ours})
    assert not gone({})


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_while_it_waits_is_cancelled(stream: bool) -> None:
    front = SlowFront()
    client = client_of(front)
    ours, theirs = socket.socketpair()

    def ask() -> None:
        body = ASK | {"stream": stream}
        client.post(CHAT, json=body, environ_overrides={"gunicorn.socket": ours})

    asking = threading.Thread(target=ask)
    with ours:
        asking.start()
        assert soon(lambda: front.asked)
        assert front.cancelled == []
        theirs.close()
        asking.join(5)
    assert not asking.is_alive()
    assert front.cancelled == [0]


def test_a_dropped_stream_frees_the_engine(tiny: FlaskClient, tiny_llm: LLM) -> None:
    body = ASK | {"stream": True, "max_tokens": 3000, "n": 2, "temperature": 0}
    before = tiny_llm.metrics()["cancellations"]
    response = tiny.post(CHAT, json=body, buffered=False)
    frames = iter(response.iter_encoded())
    for _ in range(4):
        next(frames)
    response.close()

    def rests() -> bool:
        now = tiny_llm.metrics()
        return bool(now["running"] + now["waiting"] + now["reading"] == 0)

    assert soon(rests)
    assert tiny_llm.metrics()["cancellations"] <= before + 2


# -- configuration ------------------------------------------------------------------------


def test_configuration_from_variables() -> None:
    environ = {
        "WEBAPP_SOCKET": "/x", "WEBAPP_CORS_ORIGINS": "https://a.example, https://b.example",
        "WEBAPP_MAX_TOKENS": "5", "WEBAPP_KEEP_ALIVE": "0.5", "OTHER": "x",
    }  # fmt: skip
    config = WebConfig.from_env(environ)
    assert config.cors_origins == ("https://a.example", "https://b.example")
    assert (config.socket, config.max_tokens, config.keep_alive) == ("/x", 5, 0.5)
    assert WebConfig.from_env({}) == WebConfig()
    assert WebConfig.from_env({"WEBAPP_THREADS": "40"}).max_running == 32
    environ = {"WEBAPP_THREADS": "40", "WEBAPP_MAX_RUNNING": "3"}
    assert WebConfig.from_env(environ).max_running == 3


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WEBAPP_MAX_TOKEN": "5"}, "did you mean WEBAPP_MAX_TOKENS"),
        ({"WEBAPP_MAX_TOKENS": "five"}, "'five'"),
        ({"WEBAPP_MAX_TOKENS": "0"}, "between 1"),
        ({"WEBAPP_REQUEST_TIMEOUT": "nan"}, "between"),
        ({"WEBAPP_API_KEYS": "a b"}, "without blanks"),
        ({"WEBAPP_API_KEYS_FILE": "nowhere"}, "cannot be read"),
    ],
)
def test_bad_configurations(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WebConfig.from_env(environ)


def test_a_file_without_keys_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(ConfigError, match="no key"):
        WebConfig.from_env({"WEBAPP_API_KEYS_FILE": str(tmp_path / "keys")})
