"""Shared by all tests: a known environment, OpenBLAS before MLX, and the demo checkpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Appended, so that an installed package still comes before the checkout.
sys.path.append(str(Path(__file__).parents[1]))

BLAS = os.environ.get("MLXCEL_BLAS")  # so that the suite can run on either
KEPT = {"MLXCEL_CACHE_DIR", "MLXCEL_BUILD"}
for _name in [n for n in os.environ if n.startswith("MLXCEL_") and n not in KEPT]:
    del os.environ[_name]

from mlxcel.hardware.blas import choose  # noqa: E402 (after the environment is known)

choose(BLAS)  # test modules may import MLX in any order


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs the demo checkpoint carries its marker."""
    for item in items:
        if "demo_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.demo)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the caller's settings, nor those of the test before it."""
    for name in [n for n in os.environ if n.startswith("MLXCEL_") and n not in KEPT]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """Folder of the demo checkpoint, fetched once into the user's cache folder."""
    from mlxcel.config import Settings
    from mlxcel.runtime.demo import fetch

    return fetch(Settings.from_env(os.environ).cache_dir)
