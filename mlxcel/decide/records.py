"""Evidence: one record per measurement campaign, as frozen values, checked where they are made.

A record says what was measured, on which host, how, when and by which round loop. Values that
a source does not give are ``None``; what follows from others (round cost, mean width) is not
stored but worked out in `mlxcel.decide.readings`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.provenance import Provenance
from mlxcel.decide.record_row import Row, half_digit
from mlxcel.errors import LoadError

__all__ = [
    "EXACT_FORMS",
    "MEASURED_SCHEMA_VERSION",
    "ROUND_LOOP_VERSION",
    "SCHEMA_VERSION",
    "Exactness",
    "Fit",
    "Generation",
    "Host",
    "Kernel",
    "Kind",
    "Origin",
    "Pairing",
    "Protocol",
    "Record",
    "Row",
    "Stage",
    "TimeUnit",
    "Timing",
    "check_id",
    "half_digit",
]

Origin = Literal["measured", "published"]
Generation = Literal["M1", "M2", "M3", "M4", "M5"]
Kind = Literal["mtp", "dflash", "draft-model", "prompt-lookup"]
Protocol = Literal["guarded", "unguarded", "fast-test", "single-run", "profile", "unknown"]
Exactness = Literal["exact", "exact-narrow", "inexact-wide", "unknown"]
Stage = Literal["round", "draft", "verify", "accept-hook", "finalize"]
Kernel = Literal["wide", "narrow"]
TimeUnit = Literal["ms", "verify of one token"]

SCHEMA_VERSION = 1
"""Of published records, and of what was measured before raw samples were kept."""

MEASURED_SCHEMA_VERSION = 2
"""Of records with provenance and raw samples, from which every figure can be worked out again."""

ROUND_LOOP_VERSION = 1
"""Version of this project's round loop. Raise it with every change that moves round cost:
all evidence taken with an older one is then stale."""

EXACT_FORMS: tuple[Exactness, ...] = ("exact", "exact-narrow")
"""Forms whose verify gives what single steps give, byte for byte. ``exact-narrow`` gets there
by the row-by-row quantized kernel; ``inexact-wide`` is the fast kernel that does not."""

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")


def check_id(name: str) -> None:
    """Check that a name can be a record's: it becomes that of a file.

    Raises
    ------
    LoadError
        It is empty, or holds something else than small letters, digits, points and hyphens.
    """
    if not _ID.fullmatch(name):
        raise LoadError(f"id {name!r} may hold small letters, digits, points and hyphens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where it was measured.

    Attributes
    ----------
    chip : str
        As the system names it: ``Apple M3 Ultra``, ``NVIDIA GB10``.
    generation : {"M1", ..., "M5"} or None
        Apple generation; ``None`` for any other host.
    memory_gb : float or None
        Memory in GB.
    """

    chip: str
    generation: Generation | None
    memory_gb: float | None

    def __post_init__(self) -> None:
        if self.chip.startswith("Apple M") and self.generation != self.chip[6:8]:
            raise LoadError(
                f"host: chip {self.chip!r} is of generation {self.chip[6:8]!r}, "
                f"not {self.generation!r}"
            )

    @property
    def subject(self) -> str:
        """What the gate decides by: the generation, or the chip where there is none."""
        return self.generation or self.chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Target and drafter.

    Attributes
    ----------
    name : str
        Short name by which records of the same pairing belong together.
    kind : {"mtp", "dflash", "draft-model", "prompt-lookup"}
        Kind of drafter.
    target, drafter : str
        Checkpoints as the source names them.
    target_quantization, drafter_quantization : str or None
        ``4-bit``, ``bf16`` and the like.
    batch_capable : bool or None
        Whether the target can batch; ``None`` where the source does not say.
    """

    name: str
    kind: Kind
    target: str
    drafter: str
    target_quantization: str | None
    drafter_quantization: str | None
    batch_capable: bool | None

    @property
    def governed(self) -> bool:
        """Whether the gate decides for this pairing: a batch-capable target with an MTP drafter."""
        return self.kind == "mtp" and self.batch_capable is True


@dataclass(frozen=True, slots=True)
class Fit:
    """A published line ``cost = a + b K`` in classic steps, with its largest residual."""

    a: float
    b: float
    largest_residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time of one stage of a round, at a width, with a kernel form where it is known."""

    stage: Stage
    width: int | None
    kernel: Kernel | None
    value: float
    unit: TimeUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement campaign.

    Attributes
    ----------
    id : str
        Unique name, small letters, digits, points and hyphens.
    origin : {"measured", "published"}
        Taken by this project, or transcribed from elsewhere.
    address : str or None
        Where it is published; required then.
    date : str or None
        ISO date to the day or month.
    protocol : str
        ``guarded``: alternated arms, contention guard, spread limit. ``single-run``: one timed
        run a cell. ``fast-test``: a short run on a test build. ``profile``: with the stage
        clocks on, which cost speed themselves.
    tool : str or None
        The script it was taken with.
    exactness : str
        See `EXACT_FORMS`.
    round_loop : int or str
        Version of our loop for a measured record; the other engine's state in words.
    includes : tuple of str
        Changes of the round loop that the source says were in.
    versions : tuple of pairs
        Name and version of what took part.
    classic_from : str or None
        Record whose classic speed of the same prompt and host these rows compare with.
    schema : int
        `SCHEMA_VERSION` or `MEASURED_SCHEMA_VERSION`.
    provenance : Provenance or None
        Of a record with `MEASURED_SCHEMA_VERSION` only.
    """

    id: str
    origin: Origin
    address: str | None
    date: str | None
    host: Host
    pairing: Pairing
    protocol: Protocol
    tool: str | None
    exactness: Exactness
    round_loop: int | str
    includes: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    classic_from: str | None
    rows: tuple[Row, ...]
    fits: tuple[Fit, ...]
    timings: tuple[Timing, ...]
    notes: str | None
    schema: int = SCHEMA_VERSION
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        self._check_schema()
        check_id(self.id)
        if not self.rows and not self.timings:
            raise LoadError("a record needs at least one row or timing")
        if self.origin == "published" and (not self.address or isinstance(self.round_loop, int)):
            raise LoadError("a published record needs an address, and its round_loop in words")
        if self.origin == "measured":
            if not isinstance(self.round_loop, int) or self.round_loop < 1:
                raise LoadError(f"a measured record numbers its loop, not {self.round_loop!r}")
            if self.date is None or len(self.date) != 10:
                raise LoadError(f"a measured record needs the day it was taken, got {self.date!r}")

    def _check_schema(self) -> None:
        """Raw samples and provenance are there together, and say what the record says."""
        found = self.provenance
        if self.schema == SCHEMA_VERSION:
            if found is not None or any(row.raw is not None for row in self.rows):
                raise LoadError("provenance and raw samples need schema 2")
            return
        if self.schema != MEASURED_SCHEMA_VERSION or found is None:
            raise LoadError(f"schema {self.schema} needs provenance")
        if self.origin != "measured":
            raise LoadError(f"schema {self.schema} is for measured records, not {self.origin} ones")
        for name, inner, outer in (
            ("round_loop", found.round_loop, self.round_loop),
            ("versions", found.versions, self.versions),
            ("date", found.day, self.date),
        ):
            if inner != outer:
                raise LoadError(f"{name} is {outer!r}, but {inner!r} by the provenance")
        if found.cost_only and self.rows:
            raise LoadError("a cost-only record has timings and no rows of text")
        for number, row in enumerate(self.rows):
            if row.raw is None:
                raise LoadError(f"rows[{number}]: raw samples are missing")
