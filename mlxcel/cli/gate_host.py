"""What ``mlxcel gate explain`` finds out about this host: its chip and its kernels."""

from __future__ import annotations

from mlxcel.config import Settings
from mlxcel.decide.explain import KernelFinding
from mlxcel.decide.kernels import decide_kernels
from mlxcel.engine.host_chip import this_chip
from mlxcel.errors import LoadError

__all__ = ["kernel_finding", "this_chip"]


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
