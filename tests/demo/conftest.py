"""The demo model, loaded once for all modules here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.support import Demo


@pytest.fixture(scope="package")
def demo(demo_folder: Path) -> Iterator[Demo]:
    made = Demo(demo_folder)
    yield made
    made.llm.close()
