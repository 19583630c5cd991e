"""Plots of a measured record as SVG: speed-up by prompt, cost over width, acceptance by position.

Drawn as `mlxcel.bench.plots` draws sweeps: the same record gives the same bytes with the same
matplotlib, in a light and a dark theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxcel.bench.kernel_plot import require_matplotlib
from mlxcel.bench.measured import record_id
from mlxcel.bench.plots import _COLOURS, THEMES, Sweep, SweepPoint, Theme, _settings, sweep_svg
from mlxcel.decide.records import Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["acceptance_svg", "by_position", "cost_sweeps", "plots_of", "speedup_svg"]

_HEAD = 0.9
_ROW = 0.34
"""Inches: of title and axis, and of each bar."""


def plots_of(record: Record) -> dict[str, str]:
    """Every plot of a record.

    Parameters
    ----------
    record : Record
        With rows of text and raw samples.

    Returns
    -------
    dict of str to str
        SVG texts by ``NAME-THEME``: ``speedup``, ``acceptance`` where anything was drafted, and
        ``cost-PROMPT`` for each prompt with two widths or more.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    require_matplotlib()
    found = {}
    for theme in THEMES:
        found[f"speedup-{theme}"] = speedup_svg(record, theme)
        if any(by_position(row) for row in record.rows):
            found[f"acceptance-{theme}"] = acceptance_svg(record, theme)
        for prompt, sweep in cost_sweeps(record).items():
            found[f"cost-{record_id(prompt)}-{theme}"] = sweep_svg(sweep, theme)
    return found


def by_position(row: Row) -> tuple[float, ...]:
    """Share of the verifies of a row in which the draft at each place of the block was accepted."""
    runs = row.raw.of("speculative") if row.raw is not None else ()
    rounds = sum(run.rounds for run in runs)
    deepest = max((len(run.accepted_by_position) for run in runs), default=0)
    counts = [
        sum(run.accepted_by_position[at] for run in runs if at < len(run.accepted_by_position))
        for at in range(deepest)
    ]
    return tuple(count / rounds for count in counts)


def cost_sweeps(record: Record) -> dict[str, Sweep]:
    """Round cost over width for every prompt with two widths or more."""
    by_prompt: dict[str, list[SweepPoint]] = {}
    for row in record.rows:
        if row.prompt is not None and row.requested_width is not None and row.round_cost:
            emitted, acceptance = row.emitted_per_verify, row.acceptance
            mean = 1 + (emitted - 1) / acceptance if emitted and acceptance else None
            point = SweepPoint(row.requested_width, row.round_cost, mean)
            by_prompt.setdefault(row.prompt, []).append(point)
    return {
        prompt: Sweep(title=_title(record), subtitle=f"{_subtitle(record)}, {prompt}",
                      points=tuple(sorted(points, key=lambda point: point.width)))
        for prompt, points in by_prompt.items()
        if len({point.width for point in points}) > 1
    }  # fmt: skip


def speedup_svg(record: Record, theme: Theme) -> str:
    """Speed-up of every row with its confidence interval; hollow where it is not publishable."""
    rows = [row for row in record.rows if row.speedup is not None and row.interval is not None]
    colours = _COLOURS[theme]

    def draw(axes: Axes) -> None:
        axes.axvline(1, color=colours.text, linewidth=0.8, linestyle="--")
        for at, row in enumerate(reversed(rows)):
            speedup, (low, high) = row.speedup or 0.0, row.interval or (0.0, 0.0)
            axes.hlines(at, low, high, color=colours.stated, linewidth=1.6)
            axes.plot(
                speedup, at, marker="o", markersize=5.5, markeredgecolor=colours.stated,
                markerfacecolor=colours.stated if row.publishable else colours.background,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(0, None)
        axes.set_xlabel("speed-up over classic decode (hollow: not publishable)")

    cells = "; ".join(
        f"{_label(row)}: {row.speedup:.2f} ({(row.interval or (0, 0))[0]:.2f} to "
        f"{(row.interval or (0, 0))[1]:.2f})"
        for row in rows
    )
    return _svg(record, theme, _HEAD + 0.5 + _ROW * len(rows), cells, draw, left=0.24)


def acceptance_svg(record: Record, theme: Theme) -> str:
    """Share of verifies in which the draft at each place was accepted, a line for each row."""
    rows = [row for row in record.rows if by_position(row)]
    marks = "osD^vPX*"

    def draw(axes: Axes) -> None:
        colours = _COLOURS[theme]
        most = max(len(by_position(row)) for row in rows)
        for at, row in enumerate(rows):
            shares = by_position(row)
            axes.plot(
                range(1, len(shares) + 1), shares, marker=marks[at % len(marks)], markersize=4.5,
                color=(colours.stated, colours.ran, colours.text)[at % 3], label=_label(row),
            )  # fmt: skip
        axes.set_xlim(0.7, most + 0.3)
        axes.set_xticks(range(1, most + 1))
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("position of the draft in the block")
        axes.set_ylabel("accepted, share of verifies")
        axes.legend(loc="upper right")

    cells = "; ".join(
        f"{_label(row)}: {', '.join(f'{share:.2f}' for share in by_position(row))}" for row in rows
    )
    return _svg(record, theme, 4.2, cells, draw, left=0.12)


def _label(row: Row) -> str:
    return f"{row.prompt}, K = {row.requested_width}"


def _title(record: Record) -> str:
    return f"{record.host.chip}: {record.pairing.name}"


def _subtitle(record: Record) -> str:
    form = record.provenance.kernel if record.provenance else None
    served = f", {form.form}" if form else ""
    return f"{record.date}{served}, {record.protocol}"


def _svg(
    record: Record,
    theme: Theme,
    height: float,
    cells: str,
    draw: Callable[[Axes], None],
    *,
    left: float,
) -> str:
    """One pair of axes below a title; ``height`` in inches, ``left`` a share of the width."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    title, subtitle = _title(record), _subtitle(record)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(_COLOURS[theme]))
        figure = Figure(figsize=(6.4, height))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((left, 0.5 / height, 0.96 - left, 1 - (_HEAD + 0.3) / height))
        figure.text(0.04, 1 - 0.26 / height, title, size=11, weight="bold")
        figure.text(0.04, 1 - 0.5 / height, subtitle, size=8.5)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={
                "Date": None,
                "Creator": f"mlxcel with matplotlib {matplotlib.__version__}",
                "Description": f"{title}. {subtitle}. {cells}.",
            },
        )
    return re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)
