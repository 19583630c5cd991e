"""Phones, dark mode, contrast, keyboard and screen readers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.web.page.browser import CONTROL, ENTER, SPACE, TAB, Page
from tests.web.page_script import ANSWER, HOSTILE, Script, measured_policy
from tests.web.page_server import PageServer

IN_SIGHT = """
const {top, bottom} = arguments[0].getBoundingClientRect();
return top >= 0 && bottom <= window.innerHeight;
"""


def test_a_phone_scrolls_only_up_and_down(page: Page, server: PageServer) -> None:
    server.script = Script(text=HOSTILE, step=0.01, policy=measured_policy())
    page.resize(320, 640, phone=True)
    page.open(server.address)
    page.part("race").click()
    for name in ("output-title", "stop"):
        assert page.script(IN_SIGHT, page.part(name)), name
    page.ended(2)
    page.until(lambda: page.all("#chart svg"), "the chart is drawn")
    page.part("chart-details").click()
    page.script("document.getElementById('key-form').hidden = false")
    width = page.script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width == [320, 320]
    assert (
        page.script(
            "return [...document.querySelectorAll('button:not([hidden])')]"
            ".filter((each) => each.offsetHeight < 44).map((each) => each.id)"
        )
        == []
    )


def test_dark_mode_has_other_colours(page: Page) -> None:
    light = [page.style("body", name) for name in ("background-color", "color")]
    page.prefer(prefers_color_scheme="dark")
    dark = [page.style("body", name) for name in ("background-color", "color")]
    assert light[0] != dark[0]
    assert light[1] != dark[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(page: Page, server: PageServer, scheme: str) -> None:
    server.script = Script(ending="error")
    page.prefer(prefers_color_scheme=scheme)
    page.part("ask").click()
    page.ended()
    selectors = [
        ".answer .drafted",
        ".answer .target",
        ".legend",
        ".hint",
        ".notice",
        "#ask",
        "#race",
        "label",
    ]
    low = {name: found for name in selectors if (found := contrast(page, name)) < 4.5}
    assert low == {}


def contrast(page: Page, selector: str) -> float:
    """Ratio of the text's luminance to that of the first ground behind it."""
    colours = page.script(
        """
        let at = document.querySelector(arguments[0]);
        const text = getComputedStyle(at).color;
        const ground = () => getComputedStyle(at).backgroundColor;
        while (ground() === "rgba(0, 0, 0, 0)") at = at.parentElement;
        return [text, ground()];
        """,
        selector,
    )
    bright, dim = sorted((luminance(colour) for colour in colours), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of a text like ``rgb(1, 2, 3)``."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_keyboard_is_enough(page: Page, server: PageServer) -> None:
    server.script = Script(step=0.02)

    def press(*keys: str) -> str:
        page.driver.switch_to.active_element.send_keys(*keys)
        return str(page.script("return document.activeElement.id"))

    page.script("document.activeElement.blur()")
    press(TAB)
    assert press(ENTER) == "prompt"
    assert page.style("#prompt", "outline-style") != "none"
    press("Be brief. ")
    order = [press(TAB) for _ in range(6)]
    assert order == ["speculation", "width", "temperature", "max-tokens", "seed", "ask"]
    assert press(ENTER) == "stop"
    page.ended()
    assert page.script("return document.activeElement.id") == "ask"
    assert server.seen[0]["messages"][0]["content"].startswith("Be brief. ")
    assert press(TAB) == "race"
    assert press(SPACE) == "stop"
    page.ended(2)
    assert page.script("return document.activeElement.id") == "race"
    page.part("prompt").send_keys(CONTROL, ENTER)
    page.until(lambda: len(server.seen) == 4, "Ctrl+Enter asks")
    page.ended()


def test_announcements_are_few_and_come_to_the_end(page: Page, server: PageServer) -> None:
    server.script = Script(step=0.05, text=ANSWER.replace("\n", " "))
    page.script(
        """
        window.said = [];
        const region = document.getElementById("announcer");
        new MutationObserver(() => window.said.push([performance.now(), region.textContent]))
          .observe(region, {childList: true, characterData: true, subtree: true});
        """
    )
    page.part("ask").click()
    page.ended()
    said = page.script("return window.said")
    times = [at for at, _ in said]
    assert said[0][1] == "The answer begins."
    assert all(later - before >= 1990 for before, later in pairwise(times[:-1]))
    assert 2 <= len(said) <= 2 + (times[-1] - times[0]) / 1990
    assert "The model ended the answer" in said[-1][1]
    assert page.part("columns").get_attribute("aria-live") is None
