"""Small JSON records of what was measured on this host, kept per key in the cache folder.

A record is valid for exactly the key it was written with; anything else that is found in
its place is reported in the log and counts as absent, so the caller measures again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxcel.hardware import blas
from mlxcel.hardware.host import Host

__all__ = ["ProfileStore", "digest", "host_facts", "refuse_pipe", "replace_text"]

log = logging.getLogger(__name__)

# Read by MLX or the BLAS, and able to change times or the last bits of a result.
VARIABLES = (
    "MLX_ENABLE_TF32",
    "MLX_MAX_OPS_PER_BUFFER",
    "MLX_MAX_MB_PER_BUFFER",
    "MLX_USE_CUDA_GRAPHS",
    "MLX_DISABLE_COMPILE",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
)

_LARGEST = 4 << 20  # bytes; no record comes near it


def host_facts(host: Host, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of a host, its versions and its environment can change a time or a result.

    Parameters
    ----------
    host : Host
        The host.
    environ : mapping of str to str, optional
        Variables; ``os.environ`` by default.
    """
    environ = os.environ if environ is None else environ
    versions = {name: host.versions.get(name) or "none" for name in ("mlx", "mlx-lm", "mlxcel")}
    return {
        "backend": host.backend,
        "chip": host.chip,
        "cores": str(host.cores),
        "system": host.system,
        "blas": _blas(host),
        "compiler": "yes" if host.compiler else "no",
        "environment": " ".join(f"{n}={environ[n]}" for n in VARIABLES if n in environ),
        **versions,
    }


def _blas(host: Host) -> str:
    """Name of the BLAS that computes, with a digest of our own part of it."""
    if host.backend != "cpu":
        return ""
    shim = blas._find("shim") if host.blas.active else None
    try:
        content = b"" if shim is None else shim.read_bytes()
    except OSError:
        content = b""
    return f"{host.blas.name} {hashlib.sha256(content).hexdigest()[:12]}"


def digest(key: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that are the same for the same key in every process."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def refuse_pipe(path: Path) -> None:
    """Refuse what is there and is no file: opening a pipe would wait for ever.

    Raises
    ------
    OSError
        It is not a file.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a file")


def replace_text(path: Path, text: str) -> None:
    """Write a small file in one step: whoever reads it sees the old text or the new one.

    Raises
    ------
    OSError
        It cannot be written; what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


class ProfileStore:
    """Records of one kind.

    Parameters
    ----------
    folder : Path
        Where they are kept, one file per key; made when the first is written.
    version : int
        Of the records' form; files of another version are measured again.

    Notes
    -----
    Safe to use from several processes: a file is replaced in one step.
    """

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self.version = version

    def path(self, key: Mapping[str, Any]) -> Path:
        """File of a key."""
        return self.folder / f"{digest(key)}.json"

    def read(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a key; ``None`` when there is none that can be used."""
        path = self.path(key)
        try:
            refuse_pipe(path)
            with path.open("rb") as file:
                found = json.loads(file.read(_LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read (%s): measuring again", path, error)
            return None
        record = found.get("record") if isinstance(found, dict) else None
        if not isinstance(record, dict):
            log.warning("%s is no record: measuring again", path)
            return None
        if found.get("version") != self.version:
            log.info("%s has version %r, not %d: measuring again", path, found.get("version"),
                     self.version)  # fmt: skip
            return None
        if found.get("key") != json.loads(json.dumps(key)):
            log.warning("%s is of another host, version or model: measuring again", path)
            return None
        return record

    def write(self, key: Mapping[str, Any], record: Mapping[str, Any]) -> Path | None:
        """Keep a record in the place of the one before; ``None`` when that cannot be done.

        A full or read-only disk is reported in the log and loses the record, nothing else.
        """
        path = self.path(key)
        text = json.dumps(
            {"version": self.version, "key": key, "record": record},
            indent=1, sort_keys=True, allow_nan=False,
        )  # fmt: skip
        try:
            replace_text(path, text)
        except OSError as error:
            log.warning("%s cannot be written (%s): it will be measured again", path, error)
            return None
        return path
