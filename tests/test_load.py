"""Which drafter ``mlxcel.load`` takes when none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mlxcel
from mlxcel.engine.engine import Engine
from mlxcel.errors import ConfigError
from tests.support import tiny


@pytest.mark.parametrize(
    ("target", "given", "drafter"),
    [
        ("demo", {}, "demo"),
        ("demo", {"drafter": None}, None),
        ("demo", {"drafter": "none"}, "none"),
        ("demo", {"drafter": "lookup"}, "lookup"),
        ("demo", {"drafter": "auto"}, "demo"),
        ("other", {}, None),
        (Path("demo"), {}, None),
        ("other", {"drafter": "demo"}, "demo"),
    ],
)
def test_the_drafter_of_a_target(
    monkeypatch: pytest.MonkeyPatch, target: Any, given: dict[str, Any], drafter: Any
) -> None:
    asked: list[Any] = []

    def build_engine(target: Any, drafter: Any, *_: Any) -> Engine:
        asked.append((target, drafter))
        return Engine(tiny.loaded(tiny.llama_model()))

    monkeypatch.setattr("mlxcel.llm.build_engine", build_engine)
    with mlxcel.load(target, **given):
        assert asked == [(target, drafter)]


def test_the_environment_decides_where_no_settings_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def build_engine(target: Any, drafter: Any, settings: Any, *_: Any) -> Engine:
        asked.append(settings)
        return Engine(tiny.loaded(tiny.llama_model()), None, settings)

    monkeypatch.setattr("mlxcel.llm.build_engine", build_engine)
    monkeypatch.setenv("MLXCEL_DRAFT_WIDTH", "3")
    monkeypatch.setenv("MLXCEL_NUMERICS", "invariant")
    for given in (None, mlxcel.Settings()):
        mlxcel.load("demo", config=given).close()
    assert [(s.default_width, s.numerics) for s in asked] == [(3, "invariant"), (4, "fast")]
    monkeypatch.setenv("MLXCEL_DRAFT_WIDHT", "3")
    with pytest.raises(ConfigError, match="MLXCEL_DRAFT_WIDTH"):
        mlxcel.load("demo")
