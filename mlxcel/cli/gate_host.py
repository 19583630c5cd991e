"""What ``mlxcel gate`` reads on this host: its chip, and the verdicts settled here."""

from __future__ import annotations

from pathlib import Path

from mlxcel.config import Settings
from mlxcel.decide.explain import KernelFinding
from mlxcel.decide.kernels import decide_kernels
from mlxcel.decide.stored import Stored, read_stored
from mlxcel.engine.host_chip import this_chip
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.errors import LoadError
from mlxcel.hardware.host import Sources

__all__ = ["kernel_finding", "read_verdicts", "this_chip", "verdict_folder"]

_LARGEST = 1 << 20  # bytes; a verdict has about a thousand


def kernel_finding(target: str, settings: Settings) -> KernelFinding:
    """What the kernel profile of this host says about a target in the form that is served.

    Parameters
    ----------
    target : str
        Folder, hub id, GGUF file or ``"demo"``.
    settings : Settings
        Its ``weights`` choose the form; its ``cache_dir`` keeps profiles.

    Returns
    -------
    KernelFinding
        From the cache, else measured, which takes a few seconds.

    Raises
    ------
    LoadError
        There is no such model, or the form could not be timed.
    """
    from mlxcel.runtime.kernel_profile import kernel_times, shapes_of

    shapes, dtype = shapes_of(target, cache_dir=settings.cache_dir)
    times, _ = kernel_times(shapes, dtype, cache_dir=settings.cache_dir)
    verdict = decide_kernels(times.table(), times.counts, width=settings.default_width)
    form = verdict.serve if settings.weights == "auto" else settings.weights
    found = verdict.forms.get(form)
    if found is None and times.skipped:
        why = "; ".join(times.skipped.values())
        raise LoadError(f"{target}: the {form} form was not timed on this host ({why})")
    found = found or verdict.served  # a checkpoint without quantization is stored dense
    return KernelFinding(found.wide, f"{target}, {found.describe()}")


def verdict_folder(cache_dir: Path) -> Path:
    """Folder of the adaptive policy's verdicts."""
    return VerdictStore(cache_dir).folder


def read_verdicts(folder: Path, *, now: float) -> tuple[Stored, ...]:
    """Read every verdict of a folder, in the order of file names.

    Parameters
    ----------
    folder : Path
        See `verdict_folder`; one that is not there holds none.
    now : float
        Seconds since 1970.

    Returns
    -------
    tuple of Stored
        Files that cannot be read are among them, as ``corrupt``.
    """
    versions = {name: Sources().version(name) or "none" for name in ("mlx", "mlxcel")}
    return tuple(_read(path, now, versions) for path in sorted(folder.glob("*.json")))


def _read(path: Path, now: float, versions: dict[str, str]) -> Stored:
    try:
        if path.stat().st_size > _LARGEST:
            return Stored(name=path.name, state="corrupt", reason="no verdict is so large")
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Stored(name=path.name, state="corrupt", reason=f"not readable ({error})")
    return read_stored(path.name, text, now=now, versions=versions)
