"""Plots of sweeps as SVG: round cost over block width, with fits and residuals.

The same points give the same bytes with the same matplotlib: no date, fixed ids, texts as
texts. matplotlib is imported when a plot is drawn, not before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlxcel.decide.fits import Line, fit_line
from mlxcel.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["THEMES", "Sweep", "SweepPoint", "Theme", "same_plot", "sweep_svg"]

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

_SHIFT = 0.25
"""Mean widths further below the stated ones get points and a fit of their own: what the last,
shorter round of a burst takes off is less."""

_INCHES = (6.4, 4.6)
_MARGIN = 0.12


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One cell of a sweep: stated width, round cost in classic steps, mean width or ``None``."""

    width: int
    cost: float
    mean_width: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a plot shows.

    Attributes
    ----------
    title, subtitle : str
        Host and pairing; date, origin and the like.
    points : tuple of SweepPoint
        At least two different widths.
    """

    title: str
    subtitle: str
    points: tuple[SweepPoint, ...]

    def __post_init__(self) -> None:
        if len({point.width for point in self.points}) < 2:
            widths = [point.width for point in self.points]
            raise ConfigError(f"a plot needs at least two different widths, got {widths}")

    @property
    def stated(self) -> tuple[tuple[float, float], ...]:
        """Stated widths and costs."""
        return tuple((point.width, point.cost) for point in self.points)

    @property
    def ran(self) -> tuple[tuple[float, float], ...]:
        """Mean widths and costs; empty where they are the stated ones, or not all known."""
        pairs = [(p.mean_width, p.cost) for p in self.points if p.mean_width is not None]
        shift = max((p.width - (p.mean_width or p.width) for p in self.points), default=0)
        return tuple(pairs) if len(pairs) == len(self.points) and shift > _SHIFT else ()

    def describe(self) -> str:
        """All figures as text: what a reader of the picture hears, and what it is compared by."""
        cells = "; ".join(
            f"width {point.width}: cost {point.cost:.2f}"
            + (f", mean width {point.mean_width:.2f}" if point.mean_width else "")
            for point in self.points
        )
        fits = f"fit over stated widths {line_text(fit_line(self.stated))}"
        if self.ran:
            fits += f", over mean widths {line_text(fit_line(self.ran))}"
        return f"{self.title}. {self.subtitle}. {cells}. {fits}."


@dataclass(frozen=True, slots=True)
class _Colours:
    background: str
    text: str
    faint: str
    stated: str
    ran: str


_COLOURS: dict[Theme, _Colours] = {
    "light": _Colours("#ffffff", "#1f2328", "#d1d9e0", "#0969da", "#bc4c00"),
    "dark": _Colours("#0d1117", "#e6edf3", "#30363d", "#58a6ff", "#f0883e"),
}


def line_text(line: Line) -> str:
    """A fit and its largest residual as text."""
    return f"{line.a:.2f} + {line.b:.3f} K (largest residual {line.largest_residual:.2f})"


def sweep_svg(sweep: Sweep, theme: Theme) -> str:
    """Draw a sweep.

    Parameters
    ----------
    sweep : Sweep
        What to show. Rounds that ran narrower than stated are drawn again, hollow, over
        the width that they had on average, with a fit of their own.
    theme : {"light", "dark"}
        Colours.

    Returns
    -------
    str
        The text of an SVG file.

    Raises
    ------
    ImportError
        matplotlib is not installed; it comes with the extra ``bench``.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = _COLOURS[theme]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # no file of the user's changes the picture
        matplotlib.rcParams.update(_settings(colours))
        figure = Figure(figsize=_INCHES)
        FigureCanvasSVG(figure)
        cost = figure.add_axes((_MARGIN, 0.4, 0.84, 0.46))
        rest = figure.add_axes((_MARGIN, 0.11, 0.84, 0.2), sharex=cost)
        figure.text(_MARGIN, 0.945, sweep.title, size=11, weight="bold")
        figure.text(_MARGIN, 0.895, sweep.subtitle, size=8.5)
        _draw(cost, rest, sweep, colours)
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={
                "Date": None,
                "Creator": f"mlxcel with matplotlib {matplotlib.__version__}",
                "Description": sweep.describe(),
            },
        )
    # matplotlib leaves blanks at the ends of lines, which editors and hooks remove.
    return re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)


def same_plot(old: str, new: str) -> bool:
    """Whether two plots show the same.

    Drawn by one version of matplotlib they are compared byte for byte; versions draw the same
    figures a little differently, and are then compared by what they describe.
    """
    if _field(old, "title") == _field(new, "title"):
        return old == new
    described = _field(old, "description")
    return described is not None and described == _field(new, "description")


def _field(svg: str, name: str) -> str | None:
    """A field of the metadata; the only title there is the creator's."""
    found = re.search(rf"<dc:{name}>(.*?)</dc:{name}>", svg, re.DOTALL)
    return found[1] if found else None


def _settings(colours: _Colours) -> Any:  # matplotlib types its keys one by one
    return {
        "svg.hashsalt": "mlxcel",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "figure.facecolor": colours.background,
        "savefig.facecolor": colours.background,
        "axes.facecolor": colours.background,
        "axes.edgecolor": colours.faint,
        "axes.labelcolor": colours.text,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": colours.faint,
        "grid.linewidth": 0.5,
        "text.color": colours.text,
        "xtick.color": colours.text,
        "ytick.color": colours.text,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "path.simplify": False,
    }


def _draw(cost: Axes, rest: Axes, sweep: Sweep, colours: _Colours) -> None:
    """Points, fits and residuals, of the stated widths and of those that ran."""
    _series(cost, rest, sweep.stated, colours.stated, "stated width", filled=True)
    if sweep.ran:
        _series(cost, rest, sweep.ran, colours.ran, "mean width that ran", filled=False)
    rest.axhline(0, color=colours.text, linewidth=0.8)
    largest = max(abs(value) for value in rest.get_ylim())
    rest.set_ylim(-largest, largest)
    top = max(point.width for point in sweep.points)
    cost.set_xlim(0, top + 0.5)
    cost.set_xticks(sorted({1, *(point.width for point in sweep.points)}))
    cost.set_ylim(0, None)
    cost.set_ylabel("round cost\n(classic steps)")
    cost.tick_params(labelbottom=False)
    cost.legend(loc="lower right", borderaxespad=0.4)
    rest.set_ylabel("residual")
    rest.set_xlabel("block width K")


def _series(
    cost: Axes,
    rest: Axes,
    points: Sequence[tuple[float, float]],
    colour: str,
    name: str,
    *,
    filled: bool,
) -> None:
    line = fit_line(points)
    widths, costs = zip(*points, strict=True)
    ends = (0.0, max(widths))
    label = f"{name}: {line.a:.2f} + {line.b:.3f} K, residual {line.largest_residual:.2f}"
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": "-" if filled else "--",
        "linewidth": 1.4,
    }
    cost.plot(ends, [line.cost(end) for end in ends], label=label, **style)
    face = colour if filled else "none"
    marks: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 5,
                             "markeredgecolor": colour, "markerfacecolor": face}  # fmt: skip
    cost.plot(widths, costs, **marks)
    rests = [value - line.cost(width) for width, value in points]
    rest.vlines(widths, 0, rests, color=colour, linewidth=1)
    rest.plot(widths, rests, **marks)
