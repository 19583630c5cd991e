"""Which BLAS serves MLX's dense products; chosen once, before MLX is imported.

On Linux the mlx CPU wheel links the reference BLAS. A shim with the same names, loaded
first, sends its three matrix products to scipy-openblas32, an order of magnitude faster.
Nothing here imports MLX except `probe_blas`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlxcel.errors import ConfigError
from mlxcel.hardware.cgroup import usable_cores

__all__ = ["MODES", "BlasChoice", "choose", "find_mlx_library", "forwarded_calls", "probe_blas"]

MODES = ("auto", "off")
VARIABLE = "MLXCEL_BLAS"
WHEEL = "mlx wheel's reference BLAS"

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_choice: BlasChoice | None = None
_shim: ctypes.CDLL | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasChoice:
    """What was decided and why.

    Attributes
    ----------
    name : str
        Library and version, ``"accelerate"``, ``"off"``, or that of mlx's own wheel.
    reason : str
        Why, for a person.
    active : bool
        Whether mlxcel put its own choice in place of what the mlx wheel links.
    """

    name: str
    reason: str
    active: bool


class _Opener(Protocol):
    def __call__(self, shim: Path, library: Path) -> str:
        """Put the shim in front and return the library's name; OSError says why not."""


def choose(mode: str | None = None) -> BlasChoice:
    """Choose the BLAS of this process; later calls return the first choice.

    Parameters
    ----------
    mode : {"auto", "off"}, optional
        ``"off"`` keeps what the mlx wheel links. Default: ``MLXCEL_BLAS``, else ``"auto"``.

    Returns
    -------
    BlasChoice
        The choice and its reason. When OpenBLAS was wanted and cannot serve, a warning is
        logged once.

    Raises
    ------
    ConfigError
        The mode is not known.

    Notes
    -----
    Thread safety: may be called from any thread.
    """
    global _choice
    with _lock:
        wanted = parse_mode(mode, os.environ)
        if _choice is None:
            _choice = decide(
                wanted,
                system=sys.platform,
                mlx_loaded="mlx.core" in sys.modules,
                find=_find,
                put_in_front=_put_in_front,
            )
        elif mode == "off" and _choice.active:
            _log.warning(
                "BLAS mode 'off' comes too late: %s already serves; set %s=off at start",
                _choice.name,
                VARIABLE,
            )
        return _choice


def parse_mode(mode: str | None, environ: Mapping[str, str]) -> str:
    """Mode from an argument or else the environment; ConfigError names a bad value."""
    source, value = "blas", mode
    if value is None:
        source, value = VARIABLE, environ.get(VARIABLE, MODES[0])
    word = value.strip().lower()
    if word not in MODES:
        raise ConfigError(f"{source}={value!r}: use one of {', '.join(MODES)}", param="blas")
    return word


def decide(
    mode: str,
    *,
    system: str,
    mlx_loaded: bool,
    find: Callable[[str], Path | None],
    put_in_front: _Opener,
) -> BlasChoice:
    """Decide with everything from outside passed in, so that tests can pass their own.

    Parameters
    ----------
    mode : {"auto", "off"}
        What is wanted.
    system : str
        As ``sys.platform``.
    mlx_loaded : bool
        Whether ``mlx.core`` is imported already.
    find : callable
        Path of ``"mlx"``, ``"openblas"`` or ``"shim"``, or ``None``.
    put_in_front : callable
        Loads shim and library; returns the library's name or raises OSError.
    """
    if mode == "off":
        return BlasChoice(name="off", reason=f"{VARIABLE}=off: as the mlx wheel", active=False)
    if system == "darwin":
        return BlasChoice(name="accelerate", reason="macOS brings its own", active=False)
    if system != "linux":
        return BlasChoice(name=WHEEL, reason=f"nothing better on {system}", active=False)
    library, shim = find("openblas"), find("shim")
    if find("mlx") is None:
        return BlasChoice(name=WHEEL, reason="no mlx backend is installed", active=False)
    if mlx_loaded:
        return _fall_back("mlx.core was imported before mlxcel; import mlxcel first")
    if library is None:
        return _fall_back("scipy-openblas32 is not installed; pip install scipy-openblas32")
    if shim is None:
        return _fall_back("mlxcel.hardware._blas_shim is not built; reinstall mlxcel")
    try:
        name = put_in_front(shim, library)
    except (OSError, AttributeError) as error:  # AttributeError: not the symbols we know
        return _fall_back(f"OpenBLAS cannot be loaded: {error}")
    return BlasChoice(name=name, reason="loaded in front of the mlx wheel's own", active=True)


def _fall_back(reason: str) -> BlasChoice:
    _log.warning("dense products stay with the %s (slow): %s", WHEEL, reason)
    return BlasChoice(name=WHEEL, reason=reason, active=False)


def find_mlx_library() -> Path | None:
    """Path of mlx's core library, or ``None`` when no backend is installed; imports nothing."""
    name = "libmlx.dylib" if sys.platform == "darwin" else "libmlx.so"
    return _in_package("mlx", f"lib/{name}")


def _find(what: str) -> Path | None:
    if what == "mlx":
        return find_mlx_library()
    if what == "openblas":
        return _in_package("scipy_openblas32", "lib/libscipy_openblas.so")
    spec = importlib.util.find_spec("mlxcel.hardware._blas_shim")
    return Path(spec.origin) if spec and spec.origin else None


def _in_package(package: str, name: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders if (path := Path(folder) / name).is_file()]
    return found[0] if found else None


def _put_in_front(shim: Path, library: Path) -> str:
    """Load the shim, connect it, and only then make its names global."""
    global _shim
    handle = ctypes.CDLL(str(shim))
    handle.mlxcel_blas_open.argtypes = [ctypes.c_char_p]
    handle.mlxcel_blas_error.restype = ctypes.c_char_p
    handle.mlxcel_blas_calls.restype = ctypes.c_ulonglong
    if handle.mlxcel_blas_open(os.fsencode(library)):
        raise OSError(handle.mlxcel_blas_error().decode(errors="replace"))
    openblas = ctypes.CDLL(str(library))
    openblas.scipy_openblas_get_config.restype = ctypes.c_char_p
    config = openblas.scipy_openblas_get_config().decode()
    # OpenBLAS does not know container quotas, and more threads than processors stall it.
    if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        openblas.scipy_openblas_set_num_threads(usable_cores())
    handle.mlxcel_skinny_threads(int(openblas.scipy_openblas_get_num_threads()))
    ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    _shim = handle
    version = re.search(r"\d+(\.\d+)+", config)
    return f"openblas {version[0] if version else '(unknown version)'} (scipy-openblas32)"


def forwarded_calls() -> int:
    """Matrix products that the shim has passed on so far; 0 when it is not loaded."""
    return 0 if _shim is None else int(_shim.mlxcel_blas_calls())


def probe_blas() -> str:
    """Run one small product and tell which library computed it.

    Returns
    -------
    str
        Name as in `BlasChoice`.

    Raises
    ------
    ImportError
        No mlx backend is installed.
    """
    chosen = choose()
    import mlx.core as mx

    before = forwarded_calls()
    a = mx.ones((4, 64), dtype=mx.float32)
    b = mx.ones((64, 64), dtype=mx.float32)
    mx.eval(mx.matmul(a, b, stream=mx.cpu))
    if forwarded_calls() > before or not chosen.active:
        return chosen.name if chosen.name != "off" else WHEEL
    return WHEEL
