"""Where exactness records are kept, and reading them back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxcel.decide.exactness import ExactnessRecord
from mlxcel.errors import LoadError
from mlxcel.hardware.profile_store import ProfileStore

__all__ = ["PROBE_VERSION", "TARGET_NAME", "kept_record", "store_of", "without_name"]

log = logging.getLogger(__name__)

PROBE_VERSION = 1
"""Of what the probe does and of its record; another version is probed again."""

TARGET_NAME = "target_name"
"""Field of a kept record: what people call the target."""


def kept_record(store: ProfileStore, key: dict[str, Any]) -> ExactnessRecord | None:
    """The record of a key, ``None`` where there is none that can be used."""
    found = store.read(key)
    try:
        return None if found is None else ExactnessRecord.from_dict(without_name(found))
    except LoadError as error:
        log.warning("%s: %s: probing again", store.path(key), error.message)
        return None


def without_name(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A kept record as `ExactnessRecord.from_dict` takes it."""
    return {name: value for name, value in kept.items() if name != TARGET_NAME}


def store_of(cache_dir: Path) -> ProfileStore:
    """Where exactness records are kept."""
    return ProfileStore(cache_dir / "exactness", PROBE_VERSION)
