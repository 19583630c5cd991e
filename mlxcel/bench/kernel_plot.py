"""Plot of a kernel profile: the cost of one pass over its rows, stored and dense, as SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlxcel.bench.plots import _COLOURS, Theme, _Colours, _settings
from mlxcel.decide.kernels import JUDGED_ROWS, WIDE_LIMIT, KernelVerdict
from mlxcel.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["kernel_svg", "require_matplotlib"]


def require_matplotlib() -> None:
    """Check that plots can be drawn.

    Raises
    ------
    ConfigError
        matplotlib is not installed; the message says what to install.
    """
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "a plot needs matplotlib, which is not installed; pip install 'mlxcel[bench]'",
            param="plot",
        )


def kernel_svg(
    verdict: KernelVerdict, title: str, subtitle: str, theme: Theme = "light"
) -> str:
    """Draw a kernel profile.

    Parameters
    ----------
    verdict : KernelVerdict
        What to show.
    title, subtitle : str
        Model and host.
    theme : {"light", "dark"}
        Colours.

    Returns
    -------
    str
        The text of an SVG file; the same profile gives the same text.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = _COLOURS[theme]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(colours))
        figure = Figure(figsize=(6.4, 4.0))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.12, 0.13, 0.84, 0.68))
        figure.text(0.12, 0.935, title, size=11, weight="bold")
        figure.text(0.12, 0.875, subtitle, size=8.5)
        _draw(axes, verdict, colours)
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": f"mlxcel with matplotlib {matplotlib.__version__}",
                      "Description": f"{title}. {subtitle}. {verdict.reason}."},
        )  # fmt: skip
    return re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)


def _draw(axes: Axes, verdict: KernelVerdict, colours: _Colours) -> None:
    for form, colour in zip(sorted(verdict.forms), (colours.stated, colours.ran), strict=False):
        shown = _milliseconds(verdict.forms[form].seconds)
        state = "wide" if verdict.forms[form].wide else "narrow"
        label = f"{form} ({state}{', served' if form == verdict.serve else ''})"
        axes.plot(list(shown), list(shown.values()), "o-", color=colour, label=label)
    limit = WIDE_LIMIT * _milliseconds(verdict.served.seconds)[1]
    axes.plot(
        [1, JUDGED_ROWS], [limit, limit], "--", color=colours.text, linewidth=0.8,
        label=f"{WIDE_LIMIT} times one row of the form served",
    )  # fmt: skip
    axes.set_xlabel("rows")
    axes.set_ylabel("projections of one pass, ms")
    axes.set_yscale("log")
    axes.legend()


def _milliseconds(seconds: Mapping[int, float]) -> dict[int, float]:
    return {rows: 1e3 * value for rows, value in sorted(seconds.items())}
