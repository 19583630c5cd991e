"""Shared by all tests: a known environment, OpenBLAS before MLX, a cache folder of their own, a
kernel profile that no clock has made, and the demo checkpoint."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

# Appended, so that an installed package still comes before the checkout.
sys.path.append(str(Path(__file__).parents[1]))

BLAS = os.environ.get("MLXCEL_BLAS")  # so that the suite can run on either
KEPT = {"MLXCEL_CACHE_DIR", "MLXCEL_BUILD"}
for _name in [n for n in os.environ if n.startswith("MLXCEL_") and n not in KEPT]:
    del os.environ[_name]

from mlxcel import config as settings_module  # noqa: E402 (after the environment is known)
from mlxcel.config import Settings  # noqa: E402
from mlxcel.hardware.blas import choose  # noqa: E402
from tests.support.fixed_profile import measure_kernels, use_fixed_times  # noqa: E402

choose(BLAS)  # test modules may import MLX in any order

# What a run before this one, or beside it, has measured and settled must decide nothing. Set
# before test modules are imported, since some copy the environment for their processes.
_users_cache = Settings.from_env().cache_dir
_cache = tempfile.TemporaryDirectory(prefix="mlxcel-tests-")
os.environ["MLXCEL_CACHE_DIR"] = _cache.name
_default_cache_dir = settings_module.default_cache_dir
settings_module.default_cache_dir = lambda environ: (
    Path(_cache.name) if environ is os.environ else _default_cache_dir(environ)
)


def pytest_configure(config: pytest.Config) -> None:
    """The demo checkpoint alone is the user's own: it is fetched once."""
    demo = _users_cache / "demo"
    with suppress(OSError):  # tests that need it say what is wrong
        demo.mkdir(parents=True, exist_ok=True)
        Path(_cache.name, "demo").symlink_to(demo, target_is_directory=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    _cache.cleanup()


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


@pytest.fixture(autouse=True, scope="session")
def fixed_profile() -> None:
    """Wide and narrow, forms and padding follow a profile of given numbers."""
    use_fixed_times()


@pytest.fixture(autouse=True)
def measured_profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests marked ``measured`` time this host's kernels themselves."""
    if "measured" in request.keywords:
        monkeypatch.setattr("mlxcel.runtime.kernel_profile.measure_kernels", measure_kernels)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """Folder of the demo checkpoint, fetched once into the user's cache folder."""
    from mlxcel.runtime.demo import fetch

    return fetch(Settings.from_env().cache_dir)
