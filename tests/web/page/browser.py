"""A headless Chromium with the page in it, for tests and screenshots."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium import webdriver
    from selenium.webdriver.remote.webelement import WebElement

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-lcd-text",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1200,900",
    "--lang=en-GB",
)

# Keys as the WebDriver standard writes them.
TAB, ENTER, CONTROL, ESCAPE, SPACE = "\ue004", "\ue007", "\ue009", "\ue00c", "\ue00d"


def missing() -> str:
    """What a browser test lacks on this machine, "" where nothing is."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (pip install selenium)"
    if not any(map(shutil.which, BROWSERS)):
        return "Chromium is not installed (apt-get install chromium)"
    if not shutil.which("chromedriver"):
        return "chromedriver is not installed (apt-get install chromium-driver)"
    return ""


class Page:
    """The page in a browser, by the ids of its parts."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open the page anew, with nothing kept, and wait until its scripts run."""
        self.driver.get(address)
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(address)
        self.until(lambda: self.text("health-text") != "Asking the server …", "scripts run")

    def part(self, name: str) -> WebElement:
        """Element with this id."""
        return self.driver.find_element("id", name)

    def all(self, selector: str) -> list[WebElement]:
        """Elements of a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def text(self, name: str) -> str:
        """Text of the element with this id, seen or not."""
        return str(self.part(name).get_property("textContent")).strip()

    def texts(self, selector: str) -> list[str]:
        """Texts of all elements of a CSS selector, exactly as they are."""
        return [str(found.get_property("textContent")) for found in self.all(selector)]

    def joined(self, selector: str) -> str:
        """The same as one text."""
        return "".join(self.texts(selector))

    def fill(self, name: str, value: str) -> None:
        """Replace what a field holds."""
        field = self.part(name)
        field.clear()
        field.send_keys(value)

    def script(self, code: str, *arguments: Any) -> Any:
        """Result of a script; its arguments are elements or JSON values."""
        return self.driver.execute_script(code, *arguments)

    def figure(self, name: str, column: int = 0) -> str:
        """One of the figures of a column."""
        return self.texts(f"[data-figure={name}]")[column]

    def style(self, selector: str, name: str) -> str:
        """Computed style of the first element of a CSS selector."""
        return self.all(selector)[0].value_of_css_property(name)

    def until(self, found: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """Wait for something to be true; the message names what did not happen."""
        end = time.monotonic() + seconds
        while not (result := found()):
            if time.monotonic() > end:
                raise AssertionError(f"did not happen in {seconds} s: {what}")
            time.sleep(0.03)
        return result

    def ended(self, count: int = 1) -> None:
        """Wait until so many runs are over and another can be begun."""
        over = ".column:is([data-state=done], [data-state=stopped], [data-state=failed])"
        self.until(
            lambda: len(self.all(over)) >= count and self.part("ask").is_enabled(), "runs are over"
        )

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Size of the viewport, smaller than a window can be."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )

    def prefer(self, **features: str) -> None:
        """Media features of the user, with underscores for hyphens."""
        wanted = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def complaints(self) -> list[str]:
        """What the browser's console has had to say since the last call, warnings aside."""
        found = self.driver.get_log("browser")
        return [entry["message"] for entry in found if entry["level"] == "SEVERE"]


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser and end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # The driver is asked over the loopback address, never through a proxy.
    os.environ["no_proxy"] = "127.0.0.1,localhost"
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Page(driver)
    finally:
        driver.quit()
