"""What this host is, in one record: backend, processor, memory, BLAS and versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from mlxcel.errors import LoadError
from mlxcel.hardware import blas
from mlxcel.hardware.cgroup import Reader, read_text, usable_cores
from mlxcel.hardware.memory import Command, available_bytes, run_command, total_bytes

__all__ = ["Backend", "Host", "Sources", "describe", "require_mlx"]

Backend = Literal["metal", "cuda", "cpu"]

PACKAGES = ("mlxcel", "mlx", "mlx-lm", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host.

    Attributes
    ----------
    backend : {"metal", "cuda", "cpu"}
        Where MLX computes by default.
    chip : str
        Name of the processor that computes: the GPU's on CUDA, else the CPU's or SoC's.
    cores : int
        CPU cores this process can use, container quota included.
    memory_bytes, available_bytes : int
        Memory this process may use at most, and what is left of it.
    gpu_memory_bytes : int
        Memory of a CUDA device; 0 elsewhere.
    system, python : str
        Operating system with machine type, and Python's version.
    blas : BlasChoice
        What computes dense products on the CPU.
    compiler : str or None
        Path of the C++ compiler that ``mx.compile`` needs on the CPU backend.
    versions : mapping of str to str or None
        Installed versions by distribution; ``None`` where it is not installed.
    """

    backend: Backend
    chip: str
    cores: int
    memory_bytes: int
    available_bytes: int
    gpu_memory_bytes: int
    system: str
    python: str
    blas: blas.BlasChoice
    compiler: str | None
    versions: Mapping[str, str | None]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mlx_core() -> ModuleType:
    require_mlx()
    blas.choose()
    return importlib.import_module("mlx.core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where `describe` asks; tests pass their own.

    Attributes
    ----------
    system, machine : str
        As ``sys.platform`` and ``platform.machine()``.
    read, run, which, version : callable
        Read a file, run a command, find a program, find a distribution's version.
    mlx : callable
        Gives the module ``mlx.core``.
    """

    system: str = sys.platform
    machine: str = platform.machine()
    read: Reader = read_text
    run: Command = run_command
    which: Callable[[str], str | None] = shutil.which
    version: Callable[[str], str | None] = _version
    mlx: Callable[[], ModuleType] = _mlx_core


def require_mlx() -> None:
    """Check that MLX and one of its backends are installed, without importing them.

    Raises
    ------
    LoadError
        They are not; the message says what to install.
    """
    if importlib.util.find_spec("mlx") is None:
        raise LoadError("mlx is not installed; pip install 'mlxcel[cpu]' or 'mlxcel[cuda]'")
    if blas.find_mlx_library() is None:
        raise LoadError(
            "mlx has no backend (its libmlx is missing); "
            "pip install 'mlxcel[cpu]' or, with an NVIDIA GPU, 'mlxcel[cuda]'"
        )


def describe(sources: Sources | None = None) -> Host:
    """Describe this host.

    Parameters
    ----------
    sources : Sources, optional
        Where to ask; the real machine by default.

    Returns
    -------
    Host
        The description. Imports MLX.

    Raises
    ------
    LoadError
        No MLX backend is installed.
    """
    ask = sources or Sources()
    mx = ask.mlx()
    backend = _backend(mx)
    info = mx.device_info() if backend == "cuda" else {}
    name = str(info.get("device_name", "")) or _cpu_name(ask)
    return Host(
        backend=backend,
        chip=name,
        cores=usable_cores(ask.read),
        memory_bytes=total_bytes(system=ask.system, read=ask.read, run=ask.run),
        available_bytes=available_bytes(system=ask.system, read=ask.read, run=ask.run),
        gpu_memory_bytes=_gpu_bytes(info),
        system=f"{_system_name(ask)} ({ask.machine})",
        python=platform.python_version(),
        blas=blas.choose(),
        compiler=ask.which("g++"),  # the name that mlx calls
        versions={name: ask.version(name) for name in PACKAGES},
    )


def _backend(mx: ModuleType) -> Backend:
    if mx.metal.is_available():
        return "metal"
    cuda = getattr(mx, "cuda", None)
    return "cuda" if cuda is not None and cuda.is_available() else "cpu"


def _gpu_bytes(info: Mapping[str, object]) -> int:
    size = info.get("total_memory", info.get("memory_size", 0))
    return size if isinstance(size, int) else 0


def _cpu_name(ask: Sources) -> str:
    if ask.system == "darwin":
        return ask.run(("sysctl", "-n", "machdep.cpu.brand_string")) or ask.machine
    text = ask.read("/proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ask.machine


def _system_name(ask: Sources) -> str:
    if ask.system == "darwin":
        return f"macOS {ask.run(('sw_vers', '-productVersion')) or ''}".strip()
    text = ask.read("/etc/os-release") or ""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return found[1] if found else f"{ask.system} {os.uname().release}"
