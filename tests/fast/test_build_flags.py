"""The flags that the compiler really saw, against `MLXCEL_BUILD` and the pinned Cython."""

import os
import tomllib
from pathlib import Path

from mlxcel._fast import buildinfo

ASKED = set(filter(None, os.environ.get("MLXCEL_BUILD", "").split(",")))
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_optimised_and_no_fast_math() -> None:
    assert buildinfo.OPTIMIZED is True
    assert buildinfo.FAST_MATH is False


def test_the_build_is_of_the_kind_that_was_asked_for() -> None:
    assert buildinfo.CHECKED is ("checked" in ASKED)
    assert buildinfo.ABI3 is ("abi3" in ASKED)


def test_built_with_the_pinned_cython() -> None:
    needed = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    assert f"cython=={buildinfo.CYTHON_VERSION}" in needed
