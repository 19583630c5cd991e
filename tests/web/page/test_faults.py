"""What the page shows when something goes wrong, or is stopped."""

from __future__ import annotations

import re

import pytest

from tests.web.page.browser import ENTER, ESCAPE, Page
from tests.web.page_script import ANSWER, HOSTILE, Script
from tests.web.page_server import PageServer


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop_ends_the_stream_and_keeps_the_text(page: Page, server: PageServer, how: str) -> None:
    server.script = Script(step=0.1)
    page.part("race").click()
    page.until(lambda: len(page.joined(".answer")) > 8, "text arrives")
    assert not page.part("ask").is_enabled()
    if how == "button":
        page.part("stop").click()
    else:
        page.part("prompt").send_keys(ESCAPE)
    page.ended()
    assert page.texts(".phase")[0].startswith("Stopped by you after ")
    assert ANSWER.startswith(page.texts(".answer")[0])
    assert len(page.texts(".answer")[0]) > 8
    assert "no result" in page.text("verdict-texts")
    assert server.gone.wait(30)
    assert len(server.seen) == 1
    assert not page.part("stop").is_enabled()


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("error", "The engine has failed: out of memory. (engine.failed)"),
        ("cut", "The connection ended before the answer did. Try again."),
        ("break", "The connection broke. Try again."),
        ("junk", "A part of the stream is no JSON. Try again."),
    ],
)
def test_a_broken_stream_is_told_and_keeps_its_text(
    page: Page, server: PageServer, ending: str, said: str
) -> None:
    server.script = Script(ending=ending)
    page.part("ask").click()
    page.ended()
    assert page.texts(".notice:not([hidden])") == [said]
    assert "what arrived is kept" in page.texts(".phase")[0]
    assert ANSWER.startswith(page.joined(".answer"))
    assert len(page.joined(".answer")) >= 40
    assert said in page.text("announcer")
    server.script = Script()
    page.part("ask").click()
    page.until(lambda: page.joined(".answer") == ANSWER, "the next answer is whole")


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (400, {}, "Width 20 is over the bound of 16. (request.invalid)"),
        (
            429,
            {"Retry-After": "3"},
            "Width 20 is over the bound of 16. (request.invalid) Try again in 3 s.",
        ),
    ],
)
def test_a_refusal_is_told(
    page: Page, server: PageServer, status: int, headers: dict[str, str], said: str
) -> None:
    error = {
        "message": "width 20 is over the bound of 16", "type": "invalid_request_error",
        "code": "request.invalid", "param": "draft_width",
    }  # fmt: skip
    server.script = Script(refusal=(status, error, headers))
    page.part("ask").click()
    page.ended()
    assert page.texts(".notice:not([hidden])") == [said]
    assert page.texts(".phase") == ["No answer."]


def test_a_server_that_has_gone_is_told(chromium: Page) -> None:
    with PageServer() as server:
        chromium.open(server.address)
    chromium.part("ask").click()
    chromium.ended()
    assert chromium.texts(".notice:not([hidden])") == ["The server cannot be reached. Try again."]


def test_a_key_is_asked_for_and_kept_in_the_session_only(page: Page, server: PageServer) -> None:
    server.script = Script(key="secret")
    page.part("ask").click()
    page.until(lambda: page.part("key-form").is_displayed(), "a key is asked for")
    assert page.script("return document.activeElement.id") == "key"
    page.part("key").send_keys("secret", ENTER)
    page.until(lambda: page.joined(".answer") == ANSWER, "the request is sent again")
    assert not page.part("key-form").is_displayed()
    stored = page.script(
        "return [Object.values(sessionStorage), localStorage.length, document.cookie]"
    )
    assert stored == [["secret"], 0, ""]


def test_text_is_never_taken_for_markup(page: Page, server: PageServer) -> None:
    server.script = Script(text=HOSTILE)
    page.part("ask").click()
    page.ended()
    assert page.joined(".answer") == HOSTILE
    assert page.all(".answer :not(span)") == []
    assert page.script("return document.title") == "mlxcel"


def test_loading_is_shown_until_the_server_is_ready(page: Page, server: PageServer) -> None:
    error = {"message": "the engine is loading", "type": "overloaded_error", "code": "loading"}
    loading = {
        "status": "unavailable", "state": "loading", "label": "weights", "done": 3, "total": 10,
        "model": "demo", "error": error,
    }  # fmt: skip
    server.script = Script(health=(503, loading))
    page.open(server.address)
    assert page.text("health-text") == "Loading: weights"
    assert page.part("health-progress").get_property("value") == 3
    server.script = Script()
    page.until(lambda: page.text("health-text") == "Ready: demo", "the server is ready")
    assert not page.part("health-progress").is_displayed()


def test_a_stream_that_goes_quiet_is_told_and_can_be_stopped(
    page: Page, server: PageServer
) -> None:
    server.script = Script(ending="hang")
    page.part("ask").click()
    said = page.until(lambda: page.texts(".notice:not([hidden])"), "the silence is told")
    wanted = r"No token for [5-9] s\. The server was heard [0-2] s ago\. Stop ends the wait\."
    assert re.fullmatch(wanted, "\n".join(said))
    page.part("stop").click()
    page.ended()
    assert page.texts(".phase")[0].startswith("Stopped by you after ")
    assert page.texts(".notice:not([hidden])") == []
    assert server.gone.wait(30)
