"""Plot of a cost-only record as SVG: verify over width in classic steps, and parts of a verify."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxcel.bench.kernel_plot import require_matplotlib
from mlxcel.bench.plots import _COLOURS, Theme, _Colours, _settings
from mlxcel.decide.kernels import WIDE_LIMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["cost_svg"]


def cost_svg(record: Mapping[str, Any], theme: Theme = "light") -> str:
    """Draw a record.

    Parameters
    ----------
    record : mapping
        As `mlxcel.bench.cost_record.cost_record` makes it.
    theme : {"light", "dark"}
        Colours.

    Returns
    -------
    str
        The text of an SVG file; the same record gives the same text.

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
    title = f"{record['pairing']['name']}: cost of a verify"
    subtitle = f"{record['host']['chip']}, {record['cost']['dtype']}, {record['date']}"
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(colours))
        figure = Figure(figsize=(9.6, 4.2))
        FigureCanvasSVG(figure)
        widths = figure.add_axes((0.07, 0.13, 0.46, 0.68))
        parts = figure.add_axes((0.64, 0.13, 0.34, 0.68))
        figure.text(0.07, 0.935, title, size=11, weight="bold")
        figure.text(0.07, 0.88, subtitle, size=8.5)
        _draw_widths(widths, record, colours)
        _draw_parts(parts, record, colours)
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={
                "Date": None,
                "Creator": f"mlxcel with matplotlib {matplotlib.__version__}",
                "Description": f"{title}. {subtitle}. {record['figures']['reason']}.",
            },
        )
    return re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)


def _draw_widths(axes: Axes, record: Mapping[str, Any], colours: _Colours) -> None:
    found = [t for t in record["timings"] if t["stage"] == "verify" and not t["waited"]]
    forms = list(record["cost"]["target_bytes"])
    for form, colour in zip(forms, (colours.ran, colours.stated), strict=False):
        for padded, style in ((False, "o-"), (True, "s--")):
            points = sorted(
                (t["width"], t["steps"])
                for t in found
                if t["form"] == form and (t["tokens"] > t["width"]) is padded
            )
            if points:
                label = f"{form}, padded" if padded else form
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
    widths = sorted({t["width"] for t in found})
    axes.plot(
        [widths[0], widths[-1]], [WIDE_LIMIT, WIDE_LIMIT], ":", color=colours.text,
        linewidth=0.9, label=f"{WIDE_LIMIT} classic steps",
    )  # fmt: skip
    axes.set_xticks(widths)
    axes.set_ylim(0, None)
    axes.set_xlabel("block width K")
    axes.set_ylabel("pipelined classic steps of the form")
    axes.legend()


def _draw_parts(axes: Axes, record: Mapping[str, Any], colours: _Colours) -> None:
    """Parts of each form's best verify of four, with their least times."""
    labels: list[str] = []
    for at, form in enumerate(record["figures"]["forms"]):
        colour = (colours.ran, colours.stated)[at % 2]
        for part in record["parts"]:
            if (part["form"], part["tokens"]) != (form["form"], form["verify_tokens"]):
                continue
            row = len(labels)
            labels.append(f"{part['name']}, {form['form']}")
            axes.barh(row, part["milliseconds"], color=colour, height=0.7)
            least = part["least_milliseconds"]
            if least is not None:
                axes.plot([least, least], [row - 0.4, row + 0.4], color=colours.text, linewidth=1.2)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("ms alone (line: least time at the chip's peak)")
