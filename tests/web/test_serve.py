"""``mlxcel serve`` as people run it, with the clients they use."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import mlxcel
from tests.support.checkpoints import write_tiny_llama
from tests.support.fixed_profile import keep_profile
from tests.support.timing import quickest
from tests.web.support import HELLO, soon

KEY = "a-key"
CONTEXT = 32_768  # what the server allows at most too


class Server:
    """A running ``mlxcel serve``."""

    def __init__(self, folder: Path, work: Path, *words: str) -> None:
        (work / "keys").write_text(f"# test\n{KEY}\n")
        self.socket = work / "e.sock"
        self.out, self.err = work / "out", work / "err"
        environ = os.environ | {
            "PYTHONPATH": str(Path(mlxcel.__file__).parents[1]),
            "MLXCEL_CACHE_DIR": str(work / "cache"), "MLXCEL_ENABLE_MTP_B1": "true",
            "MLXCEL_MTP_EXACTNESS": "off", "MLXCEL_MTP_BLOCK_CONTROLLER": "requested",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "mlxcel", "serve", "-m", str(folder), "--port", "0", "--socket",
            str(self.socket), "--api-key-file", str(work / "keys"), "--drain-seconds", "60", *words,
        ]  # fmt: skip
        keep_profile(folder, work / "cache")
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, env=environ, stdout=out, stderr=err)
        assert soon(lambda: "try: curl" in self.out.read_text(), 120), self.err.read_text()
        found = re.search(r"at (http://[\d.:]+)", self.out.read_text())
        assert found
        self.address = found[1]

    def get(self, path: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.address + path, headers={"Authorization": f"Bearer {KEY}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def idle(self) -> bool:
        status = self.get("/health")[1]
        return bool(status.get("running") == status.get("requests") == 0)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", tools=True, context=CONTEXT)


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(folder, tmp_path_factory.mktemp("s"), "--workers", "2")
    yield made
    made.process.kill()
    made.process.wait(10)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


ASK: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "seed": 0}


def test_openais_client(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.chat.completions.create(**ASK)
    with client.chat.completions.create(**ASK, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    assert whole.usage
    assert whole.usage.completion_tokens <= 30
    two = client.chat.completions.create(**ASK, n=2, logprobs=True, top_logprobs=2)
    assert two.choices[0].message.content == text
    assert two.choices[0].logprobs
    assert two.choices[0].logprobs.content
    assert len(two.choices[0].logprobs.content[0].top_logprobs) == 2
    off = client.chat.completions.create(**ASK, extra_body={"speculation": "off"})
    assert off.choices[0].message.content == text
    old = client.completions.create(model="tiny", prompt="hello", max_tokens=5, logprobs=1)
    assert old.choices[0].logprobs


def test_tools_reach_the_template_and_the_prompt(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "hello"}}]
    plain = client.chat.completions.create(**ASK)
    offered = client.chat.completions.create(**ASK, tools=tools)
    must = client.chat.completions.create(**ASK, tools=tools, tool_choice="required")
    read = [each.usage.prompt_tokens for each in (plain, offered, must) if each.usage]
    assert read[0] < read[1] < read[2]
    # Random weights call nothing: what was begun for the model stays text.
    assert (must.choices[0].message.content or "").startswith("<tool_call>")


def test_openais_client_sees_errors(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ASK | {"model": "gpt"})
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT)):
        client.chat.completions.create(**ASK | {"max_tokens": CONTEXT})
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASK, response_format={"type": "json_object"})
    stranger = openai.OpenAI(base_url=f"{server.address}/v1", api_key="x", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(**ASK)


def test_anthropics_client(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.address, api_key=KEY, max_retries=0) as client:
        ask: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 20}
        seeded = ask | {"extra_body": {"seed": 3}}
        whole = client.messages.create(**seeded)
        with client.messages.stream(**seeded) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(b.text for b in whole.content if b.type == "text") == text
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ask | {"max_tokens": 0})


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(server: Server, stream: bool) -> None:
    asked = {"messages": HELLO, "max_tokens": 32_000, "n": 4, "logit_bias": {"0": -100}}
    body = json.dumps(asked | {"stream": stream})
    host, _, port = server.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall((head + body).encode())
        assert soon(lambda: not server.idle())
    assert soon(server.idle, 15)  # by itself it would take longer


def exchange(server: Server, *pieces: bytes) -> bytes:
    """All that the server says to bytes."""
    host, _, port = server.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        for piece in pieces:
            sock.sendall(piece)
        return b"".join(iter(lambda: sock.recv(65536), b""))


HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
AS_JSON = HEAD + b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("status", "pieces"),
    [
        (400, (b"G@T / HTTP/1.1\r\n\r\n",)),
        (400, (AS_JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",)),
        (400, (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",)),
        (413, (AS_JSON + b"Content-Length: 20971520\r\n\r\n", *[bytes(2**20)] * 20)),
        (414, (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",)),
        (431, (HEAD + b"X: " + b"a" * 20000 + b"\r\n\r\n",)),
    ],
)
def test_what_is_no_request_is_answered_in_the_one_shape(
    server: Server, status: int, pieces: tuple[bytes, ...]
) -> None:
    head, _, body = exchange(server, *pieces).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert json.loads(body)["error"]["message"]


def test_clients_that_stay_after_the_end_hold_nobody_up(server: Server) -> None:
    host, _, port = server.address.removeprefix("http://").partition(":")
    ask = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    def seconds_of_another() -> float:
        with ExitStack() as stack:
            for _ in range(20):
                sock = socket.create_connection((host, int(port)), timeout=30)
                stack.enter_context(sock).sendall(ask)
            time.sleep(0.2)
            began = time.monotonic()
            assert server.get("/health")[0] == 200
            return time.monotonic() - began

    assert quickest(seconds_of_another, 1.5) < 1.5


def asks(server: Server, at: int) -> int:
    """Ask for a stream; every fifth client leaves after its first bytes."""
    body = json.dumps(
        {"prompt": f"hello {at}", "max_tokens": 30, "ignore_eos": True, "stream": True}
    ).encode()
    host, _, port = server.address.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        text = response.read(20 if at % 5 == 0 else None)
        whole = text.endswith(b"data: [DONE]\n\n")
        assert response.status != 200 or at % 5 == 0 or whole, text
        return response.status
    finally:
        connection.close()


def test_many_clients_of_whom_some_leave(server: Server) -> None:
    with ThreadPoolExecutor(64) as pool:
        statuses = list(pool.map(lambda at: asks(server, at), range(160)))
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) > 60
    assert soon(server.idle)
    assert asks(server, 1) == 200
    assert "Traceback" not in server.err.read_text()


def test_a_dead_engine_is_503_until_it_is_back(server: Server) -> None:
    with mlxcel.EngineClient(server.socket) as engine:
        pid = engine.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    status = server.get("/health")[0]
    assert status in (200, 503)
    assert time.monotonic() - began < 10  # whoever is dead, nobody waits for it
    assert soon(lambda: server.get("/health")[0] == 200, 120)
    assert server.get("/v1/models")[0] == 200


def test_sigterm_lets_a_stream_end(folder: Path, tmp_path: Path) -> None:
    server = Server(folder, tmp_path)
    try:
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0) as client:
            asked = ASK | {"max_tokens": 300, "logit_bias": {"0": -100}}
            with client.chat.completions.create(**asked, stream=True) as stream:
                chunks = [next(stream)]
                server.process.send_signal(signal.SIGTERM)
                chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.process.wait(90) == 0
        assert not server.socket.exists()
        assert "Traceback" not in server.err.read_text()
    finally:
        server.process.kill()
        server.process.wait(10)


def test_nothing_outlives_a_server_that_was_killed(folder: Path, tmp_path: Path) -> None:
    server = Server(folder, tmp_path)
    with mlxcel.EngineClient(server.socket) as engine:
        pid = engine.status()["pid"]
    server.process.kill()
    server.process.wait(10)
    host, _, port = server.address.removeprefix("http://").partition(":")

    def gone() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    assert soon(gone)
    assert soon(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
        return "Z" not in subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
        ).stdout
    except ProcessLookupError:
        return False


def test_what_cannot_be_served_is_said_at_once(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve", "-m", str(folder), "--socket", str(tmp_path / "s"), "--port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "mlxcel", *words],
            env=os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
