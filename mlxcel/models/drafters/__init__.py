"""Drafters with weights of their own, made for one target: the kinds there are, by model type."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxcel.models.drafters.eagle_config import named_kind
from mlxcel.models.drafters.gemma4_assistant_config import ASSISTANT_TYPES
from mlxcel.models.drafters.mtp import MTP_TYPE
from mlxcel.models.drafters.published_mtp import PUBLISHED_TYPE

__all__ = ["FAMILIES", "Family", "family_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of drafter checkpoint.

    Attributes
    ----------
    kind : {"mtp", "published_mtp", "assistant", "eagle"}
        What loads it.
    title : str
        What it is, in words.
    """

    kind: Literal["mtp", "published_mtp", "assistant", "eagle"]
    title: str


_ASSISTANT = Family("assistant", "Gemma 4 assistant")
_PUBLISHED_MTP = Family("published_mtp", "multi-token-prediction head of Qwen 3.5, 3.6 and 3.8")

FAMILIES: dict[str, Family] = {
    MTP_TYPE: Family("mtp", "multi-token-prediction head made by mlxcel distill"),
    **dict.fromkeys(ASSISTANT_TYPES, _ASSISTANT),
    PUBLISHED_TYPE: _PUBLISHED_MTP,
    "eagle": Family("eagle", "EAGLE-1 head"),
    "eagle3": Family("eagle", "EAGLE-3 head"),
}
"""By ``model_type`` of the drafter's own config; most EAGLE heads are named in another field."""


def family_of(folder: Path) -> tuple[str, Family] | None:
    """Model type and kind of the drafter in a folder.

    Parameters
    ----------
    folder : Path
        Any folder.

    Returns
    -------
    tuple of str and Family, or None
        ``None`` where its config is unreadable or names a model that stands by itself: whoever
        loads that says what is wrong with it.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        kind = named_kind(config)
    return None if kind is None else (kind, FAMILIES[kind])
