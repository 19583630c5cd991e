"""What an engine process is told by its supervisor when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlxcel.config import Settings

__all__ = ["EngineSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Model and settings of an engine process.

    Attributes
    ----------
    target : str
        Folder, hub id, GGUF file or ``"demo"``.
    drafter : str or None
        As for `mlxcel.load`, but never ``"auto"``.
    settings : Settings
        Limits, steps and the form of the weights.
    drain_seconds : float
        How long running requests may go on after SIGTERM.
    log_level : int
        Of the process's log on standard error.
    """

    target: str
    drafter: str | None = None
    settings: Settings = field(default_factory=Settings)
    drain_seconds: float = 30.0
    log_level: int = 30

    def to_plain(self) -> dict[str, Any]:
        """Values for a message."""
        plain = asdict(self)
        plain["settings"]["cache_dir"] = str(self.settings.cache_dir)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EngineSpec:
        """The spec that `to_plain` was given."""
        settings = dict(plain["settings"])
        settings["cache_dir"] = Path(settings["cache_dir"])
        return cls(**(dict(plain) | {"settings": Settings(**settings)}))
