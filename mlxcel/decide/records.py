"""Evidence: one record per measurement campaign, as frozen values, checked where they are made.

A record says what was measured, on which host, how, when and by which round loop. Values that
a source does not give are ``None``; what follows from others (round cost, mean width) is not
stored but worked out in `mlxcel.decide.readings`.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from mlxcel.errors import LoadError

__all__ = [
    "EXACT_FORMS",
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

ROUND_LOOP_VERSION = 1
"""Version of this project's round loop. Raise it with every change that moves round cost:
all evidence taken with an older one is then stale."""

EXACT_FORMS: tuple[Exactness, ...] = ("exact", "exact-narrow")
"""Forms whose verify gives what single steps give, byte for byte. ``exact-narrow`` gets there
by the row-by-row quantized kernel; ``inexact-wide`` is the fast kernel that does not."""

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")
_MAX_WIDTH = 1024


def half_digit(value: float) -> float:
    """Half a unit of the last digit with which a value is written: 0.05 for 43.5.

    A published value can be off by that much from what was measured.
    """
    exponent = Decimal(str(value)).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured cell: a prompt at a width.

    Attributes
    ----------
    prompt : str or None
        Name of the prompt.
    tokens : int or None
        Token budget.
    requested_width, effective_width : int or None
        Block width K asked for, and the largest that really ran.
    accepted, proposed : int or None
        Drafts of the whole row.
    acceptance : float or None
        Accepted over proposed drafts, 0 to 1, as the source gives it.
    emitted_per_verify : float or None
        Tokens per verify pass, 1 to K.
    classic_tok_s, speculative_tok_s : float or None
        Medians of both arms in tokens per second.
    speedup : float or None
        Speculative over classic speed, as the source gives it.
    spread_percent : float or None
        ``100 (max - min) / median`` of the samples, the larger of both arms.
    n : int or None
        Samples per arm.
    classic_samples, speculative_samples : tuple of float or None
        Every sample in tokens per second, in the order they were taken.
    note : str or None
        What else the source says about this row.
    """

    prompt: str | None
    tokens: int | None
    requested_width: int | None
    effective_width: int | None
    accepted: int | None
    proposed: int | None
    acceptance: float | None
    emitted_per_verify: float | None
    classic_tok_s: float | None
    speculative_tok_s: float | None
    speedup: float | None
    spread_percent: float | None
    n: int | None
    classic_samples: tuple[float, ...] | None
    speculative_samples: tuple[float, ...] | None
    note: str | None

    def __post_init__(self) -> None:
        self._check_widths()
        self._check_acceptance()
        self._check_speedup()
        for arm in ("classic", "speculative"):
            self._check_samples(arm)

    @property
    def width(self) -> int | None:
        """The width that ran, as far as it is known, else the one asked for."""
        return self.requested_width if self.effective_width is None else self.effective_width

    def _check_widths(self) -> None:
        asked, ran, emitted = self.requested_width, self.effective_width, self.emitted_per_verify
        if asked is not None and ran is not None and ran > asked:
            raise LoadError(f"effective_width {ran} is above requested_width {asked}")
        limit = _MAX_WIDTH if self.width is None else self.width
        if emitted is not None and not 1 <= emitted <= limit:
            raise LoadError(
                f"emitted_per_verify {emitted} must be between 1 and the width {limit}"
            )

    def _check_acceptance(self) -> None:
        if (self.accepted is None) != (self.proposed is None):
            raise LoadError("accepted and proposed are given together or not at all")
        if self.accepted is None or self.proposed is None:
            return
        if self.accepted > self.proposed:
            raise LoadError(f"accepted {self.accepted} is above proposed {self.proposed}")
        given, counted = self.acceptance, self.accepted / self.proposed
        if given is not None and abs(given - counted) > 2 * half_digit(given):
            raise LoadError(f"acceptance {given} is not accepted over proposed = {counted:.4f}")

    def _check_speedup(self) -> None:
        fast, slow, given = self.speculative_tok_s, self.classic_tok_s, self.speedup
        if fast is None or slow is None or given is None:
            return
        # Sources round or cut the last digit of a ratio, hence a whole unit of it.
        least = (fast - half_digit(fast)) / (slow + half_digit(slow)) - 2 * half_digit(given)
        most = (fast + half_digit(fast)) / (slow - half_digit(slow)) + 2 * half_digit(given)
        if not least * (1 - 1e-9) <= given <= most * (1 + 1e-9):
            raise LoadError(
                f"speedup {given} is not speculative {fast} over classic {slow} = "
                f"{fast / slow:.3f}, rounding included; correct one of the three"
            )

    def _check_samples(self, arm: str) -> None:
        samples: tuple[float, ...] | None = getattr(self, f"{arm}_samples")
        if samples is None:
            return
        if self.n != len(samples):
            raise LoadError(f"{arm}_samples holds {len(samples)} samples, but n is {self.n}")
        value: float | None = getattr(self, f"{arm}_tok_s")
        middle = statistics.median(samples)
        if value is not None and abs(value - middle) > half_digit(value) * 1.001:
            raise LoadError(f"{arm}_tok_s {value} is not the median {middle} of its samples")


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

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise LoadError(f"id {self.id!r} may hold small letters, digits, points and hyphens")
        if not self.rows and not self.timings:
            raise LoadError("a record needs at least one row or timing")
        if self.origin == "published" and (not self.address or isinstance(self.round_loop, int)):
            raise LoadError("a published record needs an address, and its round_loop in words")
        if self.origin == "measured":
            if not isinstance(self.round_loop, int) or self.round_loop < 1:
                raise LoadError(f"a measured record numbers its loop, not {self.round_loop!r}")
            if self.date is None or len(self.date) != 10:
                raise LoadError(f"a measured record needs the day it was taken, got {self.date!r}")
