"""What a kernel profile means: wide or narrow, which form to serve, how many rows to pad to.

Pure: times come in as numbers (``mlxcel.hardware.kernels`` takes them). A host is *wide* for
a form of the weights when a verify of a few rows costs about as much as one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxcel.decide.chips import Chip
from mlxcel.errors import ConfigError

__all__ = [
    "JUDGED_ROWS",
    "PAD_GAIN",
    "WIDE_LIMIT",
    "FormVerdict",
    "KernelVerdict",
    "decide_kernels",
    "disagreement",
]

Times = Mapping[tuple[str, str], Mapping[int, float]]
"""Seconds by (projection, form) and rows."""

JUDGED_ROWS = 4
"""Width at which wide and narrow are told apart: the default block."""

WIDE_LIMIT = 1.6
"""Cost of a verify of `JUDGED_ROWS` rows, in rows, below which a form is wide.

Narrow kernels cost 3.1 to 3.6 there (M1 Ultra 3.1, CPU 4-bit 3.6, H200 4-bit unpadded 3.3),
wide ones 1.0 to 1.3 (CPU dense 1.13, H200 dense 1.3, M5 Max 1.29), so nothing known is near
the limit. A round also pays its drafter: at 1.6 and some 0.3 for that, a block has to emit
1.9 tokens, about the least that published pairings reach at width 4 on prose.
"""

PAD_GAIN = 0.85
"""More rows than needed are run only if they cost at most this part of what is needed:
padding has a price in attention that a projection does not show, and times have noise. Of
counts that cost about the same, by this measure, the smallest is taken."""

TIE = 0.95
"""A dense form is served only if it takes at most this part of the stored form's time,
because it takes more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormVerdict:
    """One form of the weights.

    Attributes
    ----------
    form : str
        ``"stored"`` or ``"dense"``.
    seconds : mapping of int to float
        Projections of one whole pass by rows, as measured.
    padding : mapping of int to int
        Cheapest number of rows to run a verify with, by width (2 to the most rows measured).
    ratio, unpadded_ratio : float
        Cost of `JUDGED_ROWS` rows in units of one row, with and without padding.
    """

    form: str
    seconds: Mapping[int, float]
    padding: Mapping[int, int]
    ratio: float
    unpadded_ratio: float

    @property
    def wide(self) -> bool:
        """Whether a few rows cost about as much as one."""
        return self.ratio < WIDE_LIMIT

    @property
    def padded(self) -> bool:
        """Whether any width is run with more rows than it has."""
        return any(width != rows for width, rows in self.padding.items())

    @property
    def kernel(self) -> str:
        """Name for keys: ``"wide"``, ``"narrow"`` or ``"wide-padded"``."""
        name = "wide" if self.wide else "narrow"
        return f"{name}-padded" if self.padded else name

    def cost(self, width: int) -> float:
        """Seconds of the projections of a verify, padded as proposed."""
        return _at(self.seconds, self.padding.get(width, width))

    def describe(self) -> str:
        """One phrase, for people."""
        text = (
            f"{self.form} is {'wide' if self.wide else 'narrow'}: {JUDGED_ROWS} rows cost "
            f"{self.ratio:.2f} times one row"
        )
        if self.padded:
            text += f" when padded, {self.unpadded_ratio:.2f} otherwise; "
            text += "; ".join(
                f"{_span(widths)} rows run as {rows}" for rows, widths in self._groups().items()
            )
        return text

    def _groups(self) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for width, rows in self.padding.items():
            if width != rows:
                groups.setdefault(rows, []).append(width)
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVerdict:
    """What a profile came to.

    Attributes
    ----------
    forms : mapping of str to FormVerdict
        Every form that was timed in all projections.
    serve : str
        Form to serve.
    width, verify_share : int, float
        The expected mix that ``serve`` was chosen for.
    reason : str
        One sentence without a full stop.
    """

    forms: Mapping[str, FormVerdict]
    serve: str
    width: int
    verify_share: float
    reason: str

    @property
    def served(self) -> FormVerdict:
        """Verdict on the form to serve."""
        return self.forms[self.serve]

    def wide(self, form: str | None = None) -> bool | None:
        """Whether a form (that to serve by default) is wide; ``None`` if it was not timed."""
        found = self.forms.get(self.serve if form is None else form)
        return None if found is None else found.wide

    def padded_rows(self, width: int, form: str | None = None) -> int:
        """Rows to run a verify of ``width`` with; never fewer than ``width``."""
        found = self.forms.get(self.serve if form is None else form)
        return width if found is None else found.padding.get(width, width)

    def comparison(self) -> str:
        """How much faster the form to serve is, at one row and at the width; for people."""
        other = next((found for form, found in self.forms.items() if form != self.serve), None)
        if other is None:
            return "no other form was timed"
        own = self.served
        gains = [
            f"{other.cost(rows) / own.cost(rows):.2f} times as fast as {other.form} at "
            f"{rows} {'row' if rows == 1 else 'rows'}"
            for rows in sorted({1, self.width})
        ]
        return " and ".join(gains)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON values."""
        return {
            "serve": self.serve,
            "reason": self.reason,
            "width": self.width,
            "verify_share": self.verify_share,
            "wide_limit": WIDE_LIMIT,
            "forms": {
                name: {
                    "wide": found.wide,
                    "kernel": found.kernel,
                    "ratio": round(found.ratio, 4),
                    "unpadded_ratio": round(found.unpadded_ratio, 4),
                    "padding": {str(width): rows for width, rows in found.padding.items()},
                    "seconds": {str(rows): value for rows, value in found.seconds.items()},
                }
                for name, found in self.forms.items()
            },
        }


def decide_kernels(
    times: Times,
    counts: Mapping[str, float],
    *,
    width: int = JUDGED_ROWS,
    verify_share: float = 0.5,
) -> KernelVerdict:
    """Decide from the times of a profile.

    Parameters
    ----------
    times : mapping of (projection, form) to mapping of int to float
        Median seconds by rows; 1 and `JUDGED_ROWS` must be among them.
    counts : mapping of str to float
        How many projections of that size one pass reads, by name.
    width : int
        Expected block width.
    verify_share : float
        Share of passes that are verifies of that width; the others have one row.

    Raises
    ------
    ConfigError
        A time is missing or not positive, or no form was timed in every projection.
    """
    forms = {name for _, name in times}
    verdicts = {
        form: _judge(form, _whole(times, counts, form))
        for form in sorted(forms, reverse=True)
        if all((projection, form) in times for projection in counts)
    }
    if not verdicts:
        raise ConfigError("kernel profile: no form of the weights was timed in every projection")

    def mean(found: FormVerdict) -> float:
        return (1 - verify_share) * found.seconds[1] + verify_share * found.cost(width)

    serve = min(verdicts, key=lambda form: mean(verdicts[form]) * _handicap(form))
    reason = _reason(verdicts, serve, {form: mean(found) for form, found in verdicts.items()})
    return KernelVerdict(
        forms=verdicts, serve=serve, width=width, verify_share=verify_share, reason=reason
    )


def disagreement(verdict: KernelVerdict, chip: Chip) -> str:
    """Where the Apple table and the measurement disagree, as a sentence; empty if they agree.

    Parameters
    ----------
    verdict : KernelVerdict
        What was measured. The table speaks of quantized projections without padding, so the
        stored form counts, the dense one only where the checkpoint is not quantized.
    chip : Chip
        What the table says.
    """
    found = verdict.forms.get("stored") or verdict.served
    measured = found.unpadded_ratio < WIDE_LIMIT
    if chip.wide is None or chip.wide == measured:
        return ""
    says, is_ = ("wide", "narrow") if chip.wide else ("narrow", "wide")
    return (
        f"the table of Apple chips says {says} for {chip.name} ({chip.basis}: {chip.reason}), but "
        f"here {found.form} is {is_}: {JUDGED_ROWS} rows cost {found.unpadded_ratio:.2f} times one"
    )


def _handicap(form: str) -> float:
    return 1 / TIE if form == "dense" else 1.0


def _whole(times: Times, counts: Mapping[str, float], form: str) -> dict[int, float]:
    """Seconds of all projections of a pass, by rows."""
    tables = {name: times[name, form] for name in counts}
    common = set.intersection(*(set(table) for table in tables.values()))
    for needed in (1, JUDGED_ROWS):
        if needed not in common:
            raise ConfigError(f"kernel profile: {form} was not timed at {needed} rows")
    for name, table in tables.items():
        for rows, seconds in table.items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(
                    f"kernel profile: {name} {form} at {rows} rows took {seconds!r} s"
                )
    return {
        rows: sum(counts[name] * table[rows] for name, table in tables.items())
        for rows in sorted(common)
    }


def _judge(form: str, seconds: Mapping[int, float]) -> FormVerdict:
    padding = {}
    for width in range(2, max(seconds) + 1):
        own = _at(seconds, width)
        enough = {rows: value for rows, value in seconds.items() if rows >= width}
        least = min(enough.values())
        near = min(rows for rows, value in enough.items() if PAD_GAIN * value <= least)
        padding[width] = near if enough[near] <= PAD_GAIN * own else width
    return FormVerdict(
        form=form,
        seconds=dict(seconds),
        padding=padding,
        ratio=_at(seconds, padding[JUDGED_ROWS]) / seconds[1],
        unpadded_ratio=seconds[JUDGED_ROWS] / seconds[1],
    )


def _at(seconds: Mapping[int, float], rows: int) -> float:
    """Seconds at any number of rows; between measured ones never below the lower one.

    A time that falls between two measured counts is a change of kernel somewhere between
    them, and the dear kernel is the safe guess up to the upper one.
    """
    if rows in seconds:
        return seconds[rows]
    known = sorted(seconds)
    below = max((r for r in known if r < rows), default=known[0])
    above = min((r for r in known if r > rows), default=None)
    if above is None:  # beyond the profile every row is paid
        return seconds[below] * rows / below
    rise = max(seconds[above] - seconds[below], 0.0)
    return seconds[below] + rise * (rows - below) / (above - below)


def _reason(verdicts: Mapping[str, FormVerdict], serve: str, means: Mapping[str, float]) -> str:
    text = verdicts[serve].describe()
    others = [form for form in verdicts if form != serve]
    if not others:
        return f"{text}; no other form was timed"
    other = others[0]
    share = means[serve] / means[other]
    relation = f"{1 / share:.2f} times as fast as" if share < TIE else "no slower than"
    if share >= 1:
        relation = f"within {100 * (1 / TIE - 1):.0f} % of the speed and smaller than"
    return f"{text}; {relation} {other} ({verdicts[other].describe()})"


def _span(widths: list[int]) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
