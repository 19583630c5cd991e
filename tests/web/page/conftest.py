"""A browser for all tests of a module, and for each test a server and the page opened anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.page.browser import Page, browser, missing
from tests.web.page_server import PageServer


@pytest.fixture(scope="package")
def chromium() -> Iterator[Page]:
    """A browser; without one the test is skipped."""
    if lacks := missing():
        pytest.skip(lacks)
    with browser() as page:
        yield page


@pytest.fixture
def server() -> Iterator[PageServer]:
    """A fake server; set its script."""
    with PageServer() as running:
        yield running


@pytest.fixture
def page(chromium: Page, server: PageServer) -> Page:
    """The page in a light desktop window."""
    chromium.resize(1200, 900)
    chromium.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    chromium.open(server.address)
    chromium.complaints()
    return chromium
