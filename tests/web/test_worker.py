"""Clients that stall, damage or overload the connection itself."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from webapp import worker
from webapp.limits import SlowClient
from webapp.worker import Client


@pytest.fixture
def pair() -> Iterator[tuple[Client, socket.socket]]:
    ours, theirs = socket.socketpair()
    client = Client(fileno=ours.detach())
    with client, theirs:
        yield client, theirs


def test_a_request_that_drips_is_overdue(pair: tuple[Client, socket.socket]) -> None:
    client, theirs = pair
    client.due = time.monotonic() + 60
    theirs.sendall(b"a")
    assert client.recv(10) == b"a"
    client.due = time.monotonic() + 0.1
    with pytest.raises(SlowClient):
        client.recv(10)
    theirs.sendall(b"b")
    with pytest.raises(SlowClient):  # more bytes win no time
        client.recv(10)


def test_a_client_that_reads_nothing_counts_as_gone(
    pair: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STALL_SECONDS", 0.05)
    client, theirs = pair
    began = time.monotonic()
    with pytest.raises(ConnectionResetError):
        client.sendall(bytes(16 * 2**20))
    assert time.monotonic() - began < 20
    assert theirs.recv(1) == b"\0"


def test_all_arrives_at_a_client_that_is_still_sending(
    pair: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LINGER_SECONDS", 0.2)
    client, theirs = pair
    client.sendall(b"answer")
    theirs.sendall(bytes(1000))
    client.unread = True
    client.finish()
    assert client.fileno() < 0
    assert theirs.recv(10) == b"answer"


def test_nobody_waits_for_a_client_that_was_read(pair: tuple[Client, socket.socket]) -> None:
    client, theirs = pair
    began = time.monotonic()
    client.finish()
    assert time.monotonic() - began < worker.LINGER_SECONDS
    assert theirs.recv(10) == b""


@pytest.mark.parametrize(
    ("error", "status"), [(SlowClient(), 408), (RuntimeError("chunk"), 400), (OSError(), 400)]
)
def test_a_body_that_cannot_be_read(fake: FlaskClient, error: Exception, status: int) -> None:
    class Damaged:
        def read(self, size: int = -1) -> bytes:
            raise error

    response = fake.post(
        "/v1/chat/completions", content_type="application/json",
        environ_overrides={"wsgi.input": Damaged(), "CONTENT_LENGTH": "10"},
    )  # fmt: skip
    assert response.status_code == status
    assert json.loads(response.data)["error"]["message"]
