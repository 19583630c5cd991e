"""Where a cost-only record comes from: host, versions, commit, command and environment."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import mlxcel
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.hardware.host import Host

__all__ = ["cost_provenance"]

_PREFIXES = ("MLXCEL_", "OPENBLAS_", "OMP_", "MLX_")
_SOURCES = Path(mlxcel.__file__).resolve().parents[1]


def cost_provenance(
    host: Host,
    *,
    command: Sequence[str],
    environ: Mapping[str, str],
    started: datetime,
    seconds: float,
) -> dict[str, Any]:
    """The provenance of a record without text rows, as JSON values.

    Parameters
    ----------
    host : Host
        This host.
    command : sequence of str
        Command line; of absolute paths the last part is kept.
    environ : mapping of str to str
        Environment; only variables that change what MLX and this package do are kept.
    started : datetime
        When it began, UTC.
    seconds : float
        What it took.
    """
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain")
    return {
        "memory_bytes": host.gpu_memory_bytes or host.memory_bytes,
        "system": host.system,
        "python": host.python,
        "versions": {name: text for name, text in host.versions.items() if text},
        "commit": commit or None,
        "dirty": None if not commit or changes is None else bool(changes),
        "command": [_shown(word) for word in command],
        "environment": {
            name: _shown(environ[name]) for name in sorted(environ) if name.startswith(_PREFIXES)
        },
        "blas": host.blas.name,
        "kernel": None,
        "exactness": None,
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 3),
        "guards": {"quiet": None, "contention": None},
        "round_loop": ROUND_LOOP_VERSION,
        "cost_only": True,
    }


def _shown(text: str) -> str:
    return Path(text).name if Path(text).is_absolute() else text


def _git(*words: str) -> str | None:
    """Output of git in the folder of the sources; ``None`` where that is no repository."""
    try:
        done = subprocess.run(
            ("git", "-C", str(_SOURCES), *words),
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
