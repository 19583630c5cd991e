"""Files that come with the package. Only reads them; holds no logic."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["DEMO_DRAFTER", "published_geometries", "standard_prompts"]

DEMO_DRAFTER = Path(__file__).parent / "demo-drafter"
"""Folder of the distilled head for the demo target."""


def standard_prompts() -> dict[str, str]:
    """The three prompts every figure is taken with: enumeration, code and prose.

    They are never part of a training text.
    """
    text = files(__name__).joinpath("prompts.json").read_text(encoding="utf-8")
    prompts: dict[str, str] = json.loads(text)
    return prompts


def published_geometries() -> dict[str, Any]:
    """Sizes and quantization of published pairings by name, each with its source.

    Names and numbers only; `mlxcel.runtime.geometry` reads and checks them.
    """
    text = files(__name__).joinpath("geometries.json").read_text(encoding="utf-8")
    geometries: dict[str, Any] = json.loads(text)
    return geometries
