"""One row of a record: what was measured of a prompt at a width, checked where it is made."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from decimal import Decimal

from mlxcel.decide.raw_runs import Difference, RawRow
from mlxcel.errors import LoadError

__all__ = ["MEASURED_FIELDS", "Row", "half_digit"]

MEASURED_FIELDS = (
    "raw", "interval", "round_cost", "publishable", "reasons", "exact", "first_difference",
)  # fmt: skip
"""Fields that only rows with raw samples have."""

_MAX_WIDTH = 1024


def half_digit(value: float) -> float:
    """Half a unit of the last digit with which a value is written: 0.05 for 43.5.

    A published value can be off by that much from what was measured.
    """
    exponent = Decimal(str(value)).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


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
    raw : RawRow or None
        Every run. The fields from here on are ``None`` where it is; all but the last are worked
        out from it, see `mlxcel.decide.bench_figures.derive`.
    interval : tuple of float or None
        Low and high end of the confidence interval of `speedup`.
    round_cost : float or None
        In classic steps.
    publishable : bool or None
        Whether the row keeps all limits of the protocol.
    reasons : tuple of str or None
        Why it does not.
    exact : bool or None
        Whether all runs gave the same token ids.
    first_difference : Difference or None
        Where they did not.
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
    raw: RawRow | None = None
    interval: tuple[float, float] | None = None
    round_cost: float | None = None
    publishable: bool | None = None
    reasons: tuple[str, ...] | None = None
    exact: bool | None = None
    first_difference: Difference | None = None

    def __post_init__(self) -> None:
        self._check_widths()
        self._check_acceptance()
        self._check_speedup()
        for arm in ("classic", "speculative"):
            self._check_samples(arm)
        if self.raw is not None:
            self._check_measured(self.raw)

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

    def _check_measured(self, raw: RawRow) -> None:
        if self.prompt is None or self.tokens is None or self.requested_width is None:
            raise LoadError("a row with raw samples names its prompt, tokens and requested_width")
        most = max(run.tokens for run in raw.in_order())
        if most != self.tokens - 1:
            raise LoadError(
                f"the longest run decoded {most} tokens after its first, which does not make the "
                f"budget of {self.tokens}"
            )
        found = self.first_difference
        if (self.exact is False) != (found is not None):
            raise LoadError("first_difference is there exactly where exact is false")
        if found is not None and found.position >= self.tokens:
            raise LoadError(
                f"first_difference at {found.position} is past the {self.tokens} tokens of the row"
            )
