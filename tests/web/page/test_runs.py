"""Answers and races in a browser, against a server with scripted answers."""

from __future__ import annotations

from tests.web.page.browser import Page
from tests.web.page_script import ANSWER, GATE_REASON, Script, measured_policy, rounds_of, tokens_of
from tests.web.page_server import PageServer


def test_an_answer_streams_with_its_tokens_marked(page: Page, server: PageServer) -> None:
    server.script = Script(step=0.02)
    page.fill("prompt", "Say something")
    page.part("ask").click()
    early = page.until(lambda: page.joined(".answer"), "text arrives")
    page.until(lambda: len(page.joined(".answer")) > len(early), "more text arrives")
    assert page.figure("speed") == "–" or page.figure("speed").startswith("about ")
    page.ended()
    blocks = list(rounds_of(tokens_of(ANSWER), 4))
    drafted = "".join(t["text"] for block in blocks for t in block if t["drafted"])
    assert page.joined(".answer") == ANSWER
    assert page.joined(".answer .drafted") == drafted
    assert 0 < len(drafted) < len(ANSWER)
    assert page.texts(".answer .unknown") == []
    assert "underline" in page.style(".answer .drafted", "text-decoration-line")
    assert page.style(".answer .target", "text-decoration-line") == "none"
    assert page.style(".answer .drafted", "color") != page.style(".answer .target", "color")
    count, taken = len(blocks) - 1, sum(t["drafted"] for block in blocks for t in block)
    assert page.figure("acceptance").startswith(f"{taken / (3 * count):.2f} ({taken} of")
    assert page.figure("widths") == f"4 ({count} rounds)"
    assert "unknown until a race" in page.figure("cost")
    said = f"The adaptive policy turned speculation on, width 4: {GATE_REASON}."
    assert page.texts(".decision") == [said]
    assert page.complaints() == []


def test_the_request_has_what_the_controls_say(page: Page, server: PageServer) -> None:
    page.fill("prompt", "Hello")
    page.fill("width", "3")
    page.fill("temperature", "0.25")
    page.fill("max-tokens", "12")
    page.fill("seed", "0")
    page.part("ask").click()
    page.ended()
    assert server.seen == [
        {
            "model": "demo",
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_tokens": True,
            "speculation": "auto",
            "temperature": 0.25,
            "max_tokens": 12,
            "seed": 0,
            "draft_width": 3,
        }
    ]
    assert page.text("seed-used") == "0"


def test_an_empty_seed_is_drawn_shown_and_kept(page: Page, server: PageServer) -> None:
    for _ in range(2):
        page.part("ask").click()
        page.ended()
    first, second = (body["seed"] for body in server.seen)
    assert first != second
    assert page.text("seed-used") == str(second)
    page.part("keep-seed").click()
    page.part("ask").click()
    page.ended()
    assert server.seen[-1]["seed"] == second


def test_a_bad_value_is_not_sent(page: Page, server: PageServer) -> None:
    page.fill("seed", "-1")
    page.part("ask").click()
    page.part("race").click()
    assert server.seen == []
    assert page.script("return document.activeElement.id") == "seed"


def test_a_race_finishes_and_says_that_the_texts_are_equal(page: Page, server: PageServer) -> None:
    server.script = Script(step=0.03)
    page.part("race").click()
    page.ended(2)
    count = len(tokens_of(ANSWER))
    assert page.text("verdict-texts") == f"The texts are equal, all {count} tokens."
    assert "times as fast" in page.text("verdict-times")
    assert page.part("verdict").is_displayed()
    assert page.texts(".answer") == [ANSWER, ANSWER]
    classic, speculative = server.seen
    assert (classic["speculation"], speculative["speculation"]) == ("off", "on")
    assert classic["seed"] == speculative["seed"]
    assert server.most_at_once == 1
    assert page.figure("acceptance", 0) == "no drafts"
    assert page.figure("cost", 1).endswith("classic steps (step timed in the last race)")
    assert 1.1 < float(page.figure("cost", 1).split()[0]) < 2.0
    assert all(text.endswith(" s") for text in page.texts(".clock"))
    assert page.complaints() == []


def test_a_race_says_where_texts_differ(page: Page, server: PageServer) -> None:
    server.script = Script(other_text=ANSWER[:40] + "X" + ANSWER[41:])
    page.part("race").click()
    page.ended(2)
    assert page.text("verdict-texts") == "The texts differ, from token 11 on."
    assert page.part("verdict").get_attribute("data-equal") == "false"


def test_tokens_without_their_origin_are_not_marked(page: Page, server: PageServer) -> None:
    server.script = Script(flags=False)
    page.part("ask").click()
    page.ended()
    assert page.joined(".answer .unknown") == ANSWER
    assert page.all(".answer .drafted, .answer .target") == []


def test_marks_can_be_switched_off(page: Page) -> None:
    page.part("ask").click()
    page.ended()
    page.part("marks").click()
    assert page.style(".answer .drafted", "text-decoration-line") == "none"


def test_nothing_measured_is_said_and_measured_widths_are_drawn(
    page: Page, server: PageServer
) -> None:
    page.until(lambda: "Nothing has been measured yet" in page.text("chart-text"), "it is said")
    assert not page.part("chart").is_displayed()
    server.script = Script(policy=measured_policy())
    page.part("ask").click()
    page.until(lambda: page.all("#chart svg"), "the chart is drawn")
    assert len(page.all("#chart rect.mark.cost")) == 7
    assert len(page.all("#chart circle.mark.emitted")) == 7
    assert len(page.all("#chart-rows tr")) == 7
    assert page.all("#chart svg")[0].get_attribute("aria-label") == page.text("chart-text")
    assert "width 2, 3, 4, 5, 6, 8" in page.text("chart-text")
    assert "measured 1.85x over 4 bursts" in page.text("gate-now")


def test_leaving_the_page_ends_what_runs(page: Page, server: PageServer) -> None:
    server.script = Script(text=ANSWER * 5, step=0.05)
    page.part("ask").click()
    page.until(lambda: page.joined(".answer"), "text arrives")
    page.driver.get("about:blank")
    assert server.gone.wait(30)
