"""Apple chips: from their names to what the gate needs to know.

Pure: the strings come in (see ``mlxcel.hardware.apple``). A chip that the table does not
know is never declined by it: the answer is then that the host must be measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = [
    "GATE_TABLE",
    "GENERATIONS",
    "WIDE_FROM_GPU",
    "Basis",
    "Chip",
    "ChipStatus",
    "Generation",
    "identify",
    "parse_architecture",
]

Basis = Literal["measured", "inferred", "unmeasured"]
ChipStatus = Literal["known", "newer", "virtual", "unknown"]

WIDE_FROM_GPU = 15
"""First GPU generation whose quantized projection reads the weights once for several rows.

MLX switches its wide quantized matrix-vector kernel on by this number.
"""

NEURAL_ACCELERATOR_OS = (26, 2)
"""First macOS in which MLX can use the neural accelerators of the M5's GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of chips.

    Attributes
    ----------
    name : str
        ``"M1"`` to ``"M5"``.
    gpu : int
        GPU generation: the two digits in the Metal architecture name.
    wide : bool
        Whether quantized projections of a few rows cost about as much as one row.
    neural_accelerator : bool
        Whether the GPU has matrix units; MLX needs macOS 26.2 for them.
    bandwidth : mapping of str to float
        GB/s of memory by variant (``""`` is the base chip), best configuration, as published
        by Apple.
    measured_on : str
        Variant on which a pairing that the gate governs was measured, ``""`` for none.
    source : str
        Where the entry comes from.
    evidence : tuple of str
        Ids of the records in ``mlxcel/evidence`` behind it.
    """

    name: str
    gpu: int
    wide: bool
    neural_accelerator: bool
    bandwidth: Mapping[str, float]
    measured_on: str
    source: str
    evidence: tuple[str, ...] = ()

    @property
    def basis(self) -> Basis:
        """Whether the entry rests on a measurement: ``"measured"`` or ``"inferred"``."""
        return "measured" if self.measured_on else "inferred"


GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Generation(
                name="M1",
                gpu=13,
                bandwidth=MappingProxyType({"": 68.25, "Pro": 200.0, "Max": 400.0, "Ultra": 800.0}),
                wide=False,
                neural_accelerator=False,
                measured_on="Ultra",
                source="M1 Ultra, Gemma 4 31B + bf16 assistant, 2026-09-04: 0.93x at width 2, "
                "0.75x at width 4 (single run); 0.75x to 0.96x in 2026-06",
                evidence=("m1ultra-31b-2026-09-04", "m1ultra-31b-2026-06"),
            ),
            Generation(
                name="M2",
                gpu=14,
                bandwidth=MappingProxyType({"": 100.0, "Pro": 200.0, "Max": 400.0, "Ultra": 800.0}),
                wide=False,
                neural_accelerator=False,
                measured_on="",
                source="no measurement; inferred from the GPU generation being below 15",
            ),
            Generation(
                name="M3",
                gpu=15,
                bandwidth=MappingProxyType({"": 100.0, "Pro": 150.0, "Max": 400.0, "Ultra": 819.0}),
                wide=True,
                neural_accelerator=False,
                measured_on="Ultra",
                source="M3 Ultra, Gemma 4 31B + bf16 assistant, 2026-08-20: 2.65x, 2.41x, 1.95x at "
                "width 4, round cost 1.51 to 1.52 (fast kernel, not byte-exact)",
                evidence=("m3ultra-31b-2026-08-20", "m3ultra-31b-sweep-2026-08-20"),
            ),
            Generation(
                name="M4",
                gpu=16,
                bandwidth=MappingProxyType({"": 120.0, "Pro": 273.0, "Max": 546.0}),
                wide=True,
                neural_accelerator=False,
                measured_on="",
                source="no measurement; inferred from the GPU generation being 15 or later",
            ),
            Generation(
                name="M5",
                gpu=17,
                bandwidth=MappingProxyType({"": 153.0, "Pro": 307.0, "Max": 614.0}),
                wide=True,
                neural_accelerator=True,
                measured_on="Max",
                source="M5 Max, Gemma 4 31B + bf16 assistant, 2026-09-06: 1.63x at width 2, 1.90x "
                "at width 4 (single run); 0.85x to 1.38x on the exact path, 2026-09-26",
                evidence=(
                    "m5max-31b-2026-09-06",
                    "m5max-31b-exact-2026-09-26",
                    "m5max-31b-qat-exact-2026-09-26",
                ),
            ),
        )
    }
)
"""The table, by generation name."""

GATE_TABLE: Mapping[str, bool] = MappingProxyType(
    {name: entry.wide for name, entry in GENERATIONS.items()}
)
"""Generation name to wide quantized projections: what the evidence is compared with."""

_BY_GPU = {entry.gpu: entry for entry in GENERATIONS.values()}
_NEWEST_GPU = max(_BY_GPU)
_OLDEST_GPU = min(_BY_GPU)
_NEWEST = max(int(name[1:]) for name in GENERATIONS)
_LETTERS = {"p": "phone", "g": "", "s": "Max", "d": "Ultra"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What the strings of a host say about its chip.

    Attributes
    ----------
    name : str
        As the system gives it; the Metal architecture where there is no name.
    status : {"known", "newer", "virtual", "unknown"}
        In the table, newer than the table, virtual or translated, or not recognised.
    generation, variant : str
        ``"M1"`` ..., and ``""``, ``"Pro"``, ``"Max"``, ``"Ultra"``; ``""`` if unknown.
    gpu : int or None
        GPU generation.
    wide : bool or None
        Wide quantized projections; ``None`` says that the host must be measured.
    neural_accelerator : bool
        Whether there is one and the operating system lets MLX use it.
    bandwidth : float or None
        Memory bandwidth, GB/s.
    basis : {"measured", "inferred", "unmeasured"}
        What ``wide`` rests on. Only the variant that was measured counts as measured.
    reason : str
        How ``wide`` was found, for people.
    """

    name: str
    status: ChipStatus
    generation: str = ""
    variant: str = ""
    gpu: int | None = None
    wide: bool | None = None
    neural_accelerator: bool = False
    bandwidth: float | None = None
    basis: Basis = "unmeasured"
    reason: str

    @property
    def must_measure(self) -> bool:
        """Whether the table has no answer and the kernel profile has to give it."""
        return self.wide is None


def parse_architecture(name: str | None) -> tuple[int, str] | None:
    """GPU generation and kind from a Metal architecture name.

    Parameters
    ----------
    name : str or None
        For example ``"applegpu_g13d"``: two digits, then ``p`` phone, ``g`` base or Pro,
        ``s`` Max, ``d`` Ultra.

    Returns
    -------
    tuple of int and str, or None
        Generation and the letter; ``None`` where the name has another form.
    """
    found = re.fullmatch(r"\s*applegpu_g(\d\d)([a-z])\s*", name or "", re.ASCII)
    return (int(found[1]), found[2]) if found else None


def identify(
    brand: str | None,
    *,
    architecture: str | None = None,
    os_version: str | None = None,
    virtual: bool = False,
) -> Chip:
    """Find out what a chip can do from what the system says about it.

    Parameters
    ----------
    brand : str or None
        ``machdep.cpu.brand_string``.
    architecture : str or None
        Metal architecture name, ``mx.device_info()["architecture"]``.
    os_version : str or None
        ``kern.osproductversion``; without it the neural accelerator counts as unusable.
    virtual : bool
        Whether the system runs in a virtual machine or the process is translated.

    Returns
    -------
    Chip
        Never an error: whatever is not recognised must be measured.
    """
    name = " ".join((brand or "").split()) or (architecture or "").strip() or "unknown"
    gpu = parse_architecture(architecture)
    found = re.fullmatch(r"Apple M(\d{1,3})(?: (Pro|Max|Ultra))?( .*)?", name, re.IGNORECASE)
    rest = (found[3] or "") if found else ""
    if virtual or "virtual" in name.lower() or name.lower() == "apple processor":
        return _virtual(name, gpu)
    if found is None:
        return _by_architecture(name, gpu, os_version)
    number, variant = int(found[1]), (found[2] or "").capitalize()
    generation = f"M{number}"
    if number > _NEWEST or (gpu is not None and gpu[0] > _NEWEST_GPU):
        return _newer(name, generation, variant, gpu)
    entry = GENERATIONS.get(generation)
    if entry is None:
        return _by_architecture(name, gpu, os_version)
    if gpu is not None and (gpu[0] >= WIDE_FROM_GPU) != entry.wide:
        return Chip(
            name=name,
            status="unknown",
            generation=generation,
            gpu=gpu[0],
            reason=f"the name says {generation} (GPU generation {entry.gpu}), the Metal "
            f"architecture says GPU generation {gpu[0]}: measure with the kernel profile",
        )
    return _from_table(name, entry, None if rest else variant, os_version)


def _from_table(name: str, entry: Generation, variant: str | None, os_version: str | None) -> Chip:
    """A chip of a known generation; ``variant`` is ``None`` where its name is a new one."""
    measured = variant is not None and variant == entry.measured_on and entry.basis == "measured"
    width = "wide" if entry.wide else "narrow"
    if measured:
        why = f"measured: {entry.source}"
    elif entry.measured_on:
        why = f"inferred from the {entry.name} {entry.measured_on}: {entry.source}"
    else:
        why = entry.source
    return Chip(
        name=name,
        status="known",
        generation=entry.name,
        variant=variant or "",
        gpu=entry.gpu,
        wide=entry.wide,
        neural_accelerator=entry.neural_accelerator and _new_enough(os_version),
        bandwidth=None if variant is None else entry.bandwidth.get(variant),
        basis="measured" if measured else "inferred",
        reason=f"GPU generation {entry.gpu} has {width} quantized projections ({why})",
    )


def _by_architecture(name: str, gpu: tuple[int, str] | None, os_version: str | None) -> Chip:
    """A chip whose name says nothing."""
    if gpu is None or gpu[0] < _OLDEST_GPU:
        return Chip(
            name=name,
            status="unknown",
            gpu=gpu[0] if gpu else None,
            reason=f"{name!r} is not in the table of Apple chips: measure with the kernel profile",
        )
    if gpu[0] > _NEWEST_GPU:
        return _newer(name, "", "", gpu)
    entry = _BY_GPU[gpu[0]]
    kind = _LETTERS.get(gpu[1])
    # The letter g stands for the base chip and the Pro alike, so it names no variant.
    variant = kind if kind in ("Max", "Ultra") else None
    if kind == "phone":  # same GPU generation, another chip: nothing else carries over
        return Chip(
            name=name,
            status="known",
            gpu=gpu[0],
            wide=entry.wide,
            neural_accelerator=entry.neural_accelerator and _new_enough(os_version),
            basis="inferred",
            reason=f"inferred from GPU generation {gpu[0]} alone",
        )
    return _from_table(name, entry, variant, os_version)


def _newer(name: str, generation: str, variant: str, gpu: tuple[int, str] | None) -> Chip:
    shown = f", GPU generation {gpu[0]}" if gpu else ""
    return Chip(
        name=name,
        status="newer",
        generation=generation,
        variant=variant,
        gpu=gpu[0] if gpu else None,
        reason=f"{name}{shown} is newer than the table, which ends with M{_NEWEST} (GPU "
        f"generation {_NEWEST_GPU}): measure with the kernel profile",
    )


def _virtual(name: str, gpu: tuple[int, str] | None) -> Chip:
    return Chip(
        name=name,
        status="virtual",
        gpu=gpu[0] if gpu else None,
        reason=f"{name!r} is a virtual machine or a translated process, whose speed the chip "
        "does not tell: measure with the kernel profile",
    )


def _new_enough(os_version: str | None) -> bool:
    found = re.match(r"\s*(\d{1,4})(?:\.(\d{1,4}))?", os_version or "", re.ASCII)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= NEURAL_ACCELERATOR_OS
