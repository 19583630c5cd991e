"""What macOS says about an Apple chip, by ``sysctl``.

Facts only: ``mlxcel.decide.chips.identify`` draws the conclusions from them. Nothing is
read when this module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.hardware.memory import run_command

__all__ = ["AppleFacts", "Sysctl", "read_apple", "read_sysctl"]

Sysctl = Callable[[str], str | None]
"""Value of a ``sysctl`` name as text, or ``None`` when it does not exist or fails."""

_LONGEST = 200  # no value read here is near it


@dataclass(frozen=True, slots=True, kw_only=True)
class AppleFacts:
    """What was read; ``None`` where there was no usable answer.

    Attributes
    ----------
    brand : str or None
        ``machdep.cpu.brand_string``, for example ``"Apple M3 Ultra"``.
    architecture : str or None
        Metal architecture name, for example ``"applegpu_g15d"``.
    os_version : str or None
        ``kern.osproductversion``, for example ``"26.2"``.
    performance_cores : int or None
        Logical processors of the performance cluster.
    memory_bytes : int or None
        ``hw.memsize``, bytes.
    virtual : bool
        Whether this is a virtual machine, or a process translated by Rosetta.
    """

    brand: str | None
    architecture: str | None
    os_version: str | None
    performance_cores: int | None
    memory_bytes: int | None
    virtual: bool


def read_sysctl(name: str) -> str | None:
    """Value of one name from the ``sysctl`` program, or ``None``."""
    return run_command(("sysctl", "-n", name))


def read_apple(read: Sysctl = read_sysctl, *, architecture: str | None = None) -> AppleFacts:
    """Read the facts of this host.

    Parameters
    ----------
    read : callable
        How a ``sysctl`` name is read; tests pass their own.
    architecture : str, optional
        Metal architecture name from ``mx.device_info()``, which ``sysctl`` does not have.

    Returns
    -------
    AppleFacts
        On other systems, or where ``sysctl`` is missing, with nothing in it.
    """
    return AppleFacts(
        brand=_text(read("machdep.cpu.brand_string")),
        architecture=_text(architecture),
        os_version=_text(read("kern.osproductversion")),
        performance_cores=_count(read("hw.perflevel0.logicalcpu")),
        memory_bytes=_count(read("hw.memsize")),
        virtual=_flag(read("kern.hv_vmm_present")) or _flag(read("sysctl.proc_translated")),
    )


def _text(value: str | None) -> str | None:
    """One line of printable text."""
    text = (value or "").strip()
    return text if text and text.isprintable() and len(text) <= _LONGEST else None


def _count(value: str | None) -> int | None:
    found = re.fullmatch(r"\s*(\d{1,18})\s*", value or "", re.ASCII)
    return int(found[1]) or None if found else None


def _flag(value: str | None) -> bool:
    return (value or "").strip() == "1"
