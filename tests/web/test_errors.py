"""Every status in its place, in one shape, also when it comes too late for a status."""

from __future__ import annotations

import logging

import pytest
from flask.testing import FlaskClient

from mlxcel.errors import CapacityError, EngineError, RequestError
from tests.web.support import HELLO, FakeFront, chunks, events, post, refused
from webapp import WebConfig, create_app

CHAT = "/v1/chat/completions"
ASK = {"messages": HELLO}


def test_nothing_there(fake: FlaskClient) -> None:
    for path in ("/v1/nothing", "/v1/models/other", "/static/none.js"):
        refused(fake.get(path), 404)


def test_wrong_method(fake: FlaskClient) -> None:
    response = fake.get(CHAT)
    assert "POST" in refused(response, 405)["message"]
    assert "POST" in response.headers["Allow"]
    refused(fake.post("/health"), 405)


def test_wrong_type(fake: FlaskClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = fake.post(CHAT, data=b"{}", content_type=kind)
        assert "Content-Type" in refused(response, 415)["message"]


def test_too_large(front: FakeFront) -> None:
    client = create_app(WebConfig(max_body_bytes=2000), engine=front).test_client()
    response = client.post(CHAT, json={"messages": HELLO, "user": "x" * 3000})
    assert "2000" in refused(response, 413)["message"]
    assert post(client, CHAT, ASK)
    chunked = {
        "wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": "",
    }  # fmt: skip
    response = client.post(
        CHAT, data=b" " * 5000, content_type="application/json", environ_overrides=chunked
    )
    refused(response, 413)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("bad", param="width"), 400),
        (CapacityError("full"), 429),
        (EngineError("down"), 503),
    ],
)
def test_errors_of_the_engine(
    fake: FlaskClient, front: FakeFront, error: Exception, status: int
) -> None:
    front.refusal = error
    for body in (ASK, ASK | {"stream": True}):
        response = fake.post(CHAT, json=body)
        found = refused(response, status)
        assert found["message"] == str(error)
        assert found["param"] == ("draft_width" if status == 400 else None)
        assert ("Retry-After" in response.headers) is (status in (429, 503))
    front.refusal = None
    assert post(fake, CHAT, ASK)


def test_no_room_while_draining_is_503(fake: FlaskClient, front: FakeFront) -> None:
    front.refusal, front.state = CapacityError("draining"), {"state": "draining"}
    refused(fake.post(CHAT, json=ASK), 503)


def test_a_bug_has_an_id_that_is_in_the_log(
    fake: FlaskClient, front: FakeFront, caplog: pytest.LogCaptureFixture
) -> None:
    front.refusal = ZeroDivisionError("a secret")
    with caplog.at_level(logging.ERROR, logger="mlxcel.web"):
        error = refused(fake.post(CHAT, json=ASK), 500)
    name = error["message"].rsplit(" ", 1)[1]
    assert len(name) == 32
    assert name in caplog.text
    assert "a secret" in caplog.text
    assert "secret" not in error["message"]


def test_time_is_up(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks(["ab"], "timeout")]
    assert "2 tokens" in refused(fake.post(CHAT, json=ASK | {"timeout": 2.5}), 408)["message"]
    assert front.asked[-1]["timeout"] == 2.5
    fake.post(CHAT, json=ASK)
    assert front.asked[-1]["timeout"] == 600.0


def test_an_answer_that_failed(fake: FlaskClient, front: FakeFront) -> None:
    front.script = [*chunks(["ab"], "error", error="a round failed")]
    assert "a round failed" in refused(fake.post(CHAT, json=ASK), 503)["message"]
    front.script = [*chunks(["ab"], "cancelled")]
    refused(fake.post(CHAT, json=ASK), 503)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (EngineError("the engine has died"), "overloaded_error"),
        (ZeroDivisionError("a secret"), "api_error"),
        (None, "timeout_error"),
    ],
)
def test_an_error_inside_a_stream_is_its_last_event(
    fake: FlaskClient, front: FakeFront, path: str, ending: Exception | None, kind: str
) -> None:
    begun, *_ = chunks(["hel"])
    front.script = [begun, ending] if ending else [*chunks(["hel"], "timeout")]
    body = {
        CHAT: ASK, "/v1/completions": {"prompt": "a"},
        "/v1/messages": ASK | {"model": "fake", "max_tokens": 5},
    }[path]  # fmt: skip
    response = fake.post(path, json=body | {"stream": True})
    assert response.status_code == 200
    text = response.get_data(as_text=True)
    found = events(text)
    assert "hel" in text
    assert "[DONE]" not in text
    assert "secret" not in text
    name, data = found[-1]
    assert name == "error"
    assert set(data["error"]) == {"message", "type", "code", "param"}
    assert data["error"]["type"] == kind
    assert (data.get("type") == "error") is (path == "/v1/messages")
