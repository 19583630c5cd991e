"""What a width sweep says: round cost over width, break-even and the best width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlxcel.decide.bench_figures import rounded
from mlxcel.decide.fits import Line, break_even, fit_line
from mlxcel.decide.records import Fit, Row

__all__ = ["MIN_WIDTHS", "WidthSweep", "fits_of", "sweeps_of"]

MIN_WIDTHS = 3
"""Different widths that a fit needs: through two points a line has no residual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthSweep:
    """All widths of one prompt.

    Attributes
    ----------
    prompt : str
        Name of the prompt.
    rows : tuple of Row
        In the order of widths.
    line : Line or None
        Round cost over the width asked for; ``None`` below `MIN_WIDTHS` widths.
    best : int
        Width with the largest speed-up.
    tied : tuple of int
        Other widths whose interval overlaps with that of the best.
    """

    prompt: str
    rows: tuple[Row, ...]
    line: Line | None
    best: int
    tied: tuple[int, ...]

    @property
    def break_even(self) -> dict[int, float]:
        """Tokens that a verify must emit to be worth its cost, by width; by the line."""
        if self.line is None:
            return {}
        widths = [row.requested_width for row in self.rows if row.requested_width is not None]
        return {width: break_even(self.line, width) for width in widths}


def sweeps_of(rows: Iterable[Row]) -> tuple[WidthSweep, ...]:
    """The sweep of every prompt, in the order they come.

    Parameters
    ----------
    rows : iterable of Row
        Measured rows with their figures; those without a prompt or width are left out.
    """
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        if row.prompt is not None and row.requested_width is not None and row.speedup is not None:
            by_prompt.setdefault(row.prompt, []).append(row)
    return tuple(_sweep(prompt, own) for prompt, own in by_prompt.items())


def fits_of(rows: Iterable[Row]) -> tuple[Fit, ...]:
    """The fits that a record of these rows stores: one for each prompt that has enough widths."""
    lines = [sweep.line for sweep in sweeps_of(rows)]
    return tuple(
        Fit(rounded(line.a), rounded(line.b), rounded(line.largest_residual))
        for line in lines
        if line is not None
    )


def _sweep(prompt: str, rows: Sequence[Row]) -> WidthSweep:
    ordered = tuple(sorted(rows, key=lambda row: row.requested_width or 0))
    points = [(row.requested_width or 0, row.round_cost) for row in ordered]
    known = [(float(width), cost) for width, cost in points if cost is not None]
    enough = len({width for width, _ in known}) >= MIN_WIDTHS
    best = max(ordered, key=lambda row: row.speedup or 0.0)
    return WidthSweep(
        prompt=prompt,
        rows=ordered,
        line=fit_line(known) if enough else None,
        best=best.requested_width or 0,
        tied=tuple(
            row.requested_width or 0
            for row in ordered
            if row is not best
            and row.interval is not None
            and best.interval is not None
            and row.interval[1] >= best.interval[0]
        ),
    )
