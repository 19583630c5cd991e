"""Defaults that depend on the machine. Standard library only."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["default_cache_dir", "default_prefill_chunk"]

CPU_CHUNK = 128
"""A pass over 512 tokens behind 5500 others takes 17 s on two cores, and all that run wait for it;
of 128, 3 s. The whole prompt is no slower: 97 s against 105 to 120 (see ``docs/load.md``)."""

GPU_CHUNK = 512


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Cache folder by the XDG rules: ``$XDG_CACHE_HOME/mlxcel``, else ``~/.cache/mlxcel``."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells to ignore relative paths.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "mlxcel"


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def prefill_chunk_of(system: str, installed: Callable[[str], bool]) -> int:
    """Tokens of a prompt per pass, by what MLX can compute with.

    Parameters
    ----------
    system : str
        As ``sys.platform``.
    installed : callable
        Whether a distribution is installed.
    """
    on_gpu = system == "darwin" or any(installed(f"mlx-cuda-{major}") for major in (12, 13))
    return GPU_CHUNK if on_gpu else CPU_CHUNK


@functools.cache
def default_prefill_chunk() -> int:
    """The same, of this machine."""
    return prefill_chunk_of(sys.platform, _installed)
