"""Plots of sweeps: the same bytes for the same points, both themes, small files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mlxcel.bench.plots import THEMES, Sweep, SweepPoint, same_plot, sweep_svg
from mlxcel.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
LABELLED = Sweep(
    title="Apple M1 Ultra, a < b & c",
    subtitle="made up",
    points=tuple(SweepPoint(k, 0.5 + 0.75 * k, k - 0.01) for k in (2, 3, 4, 8)),
)
NARROWED = Sweep(
    title="Apple M3 Ultra",
    subtitle="made up",
    points=tuple(SweepPoint(k, 1 + 0.1 * k, min(k, 3 + 0.4 * (k - 3))) for k in (2, 4, 6, 12)),
)


@pytest.fixture
def drawing():
    pytest.importorskip("matplotlib")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sweep", [LABELLED, NARROWED])
def test_the_same_points_give_the_same_bytes(drawing, sweep, theme):
    made = sweep_svg(sweep, theme)
    assert made == sweep_svg(sweep, theme)
    assert len(made.encode()) < 40_000
    assert "<dc:date>" not in made
    assert not re.search(r"[ \t]$", made, re.MULTILINE)
    assert ET.fromstring(made).tag.endswith("svg")


def test_themes_differ_in_colour_only(drawing):
    light, dark = (sweep_svg(NARROWED, theme) for theme in THEMES)
    colour = re.compile(r"#[0-9a-f]{6}")
    assert light != dark
    # Ids of markers are hashes of their look, colour included.
    plain = [re.sub(r"m[0-9a-f]{10}", "m", colour.sub("", text)) for text in (light, dark)]
    assert plain[0] == plain[1]


def test_texts_are_texts(drawing):
    made = sweep_svg(NARROWED, "light")
    for text in ("Apple M3 Ultra", "block width K", "residual", "stated width: 1.00 + 0.100 K"):
        assert text in made


def test_the_users_own_settings_do_not_matter(drawing):
    import matplotlib

    plain = sweep_svg(LABELLED, "dark")
    with matplotlib.rc_context({"lines.markersize": 20, "axes.titlesize": 30, "font.size": 20}):
        assert sweep_svg(LABELLED, "dark") == plain
        assert matplotlib.rcParams["font.size"] == 20


def test_widths_that_ran_are_drawn_where_they_are_others(drawing):
    assert LABELLED.ran == ()
    assert len(NARROWED.ran) == 4
    assert "mean width that ran" in sweep_svg(NARROWED, "light")
    assert "mean width that ran" not in sweep_svg(LABELLED, "light")


def test_one_unknown_mean_width_leaves_all_out():
    points = (*NARROWED.points, SweepPoint(16, 2.6))
    assert Sweep(title="t", subtitle="s", points=points).ran == ()


def test_the_description_has_every_figure():
    text = NARROWED.describe()
    assert "width 12: cost 2.20, mean width 6.60" in text
    assert "fit over stated widths 1.00 + 0.100 K (largest residual 0.00)" in text
    assert "over mean widths" in text


@pytest.mark.parametrize("points", [(), (SweepPoint(4, 1.0),), (SweepPoint(4, 1.0),) * 3])
def test_one_width_is_no_sweep(points):
    with pytest.raises(ConfigError, match="two different widths"):
        Sweep(title="t", subtitle="s", points=points)


def test_comparing(drawing):
    made = sweep_svg(LABELLED, "light")
    moved = made.replace("<path", "<path ", 1)
    other = re.sub(r"matplotlib [\d.]+", "matplotlib 0.0", moved)
    assert same_plot(made, made)
    assert not same_plot(made, moved), "one version: byte for byte"
    assert same_plot(made, other), "another version: what it describes"
    assert not same_plot(other.replace("cost 2.00", "cost 2.01"), made)
    assert not same_plot("", made)


def test_every_plot_of_the_page_is_there_in_both_themes():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"plots/([\w.-]+\.svg)", page))
    files = {path.name: path for path in (DOCS / "plots").iterdir()}
    assert named == files.keys()
    assert {name.replace("-light.", "-dark.") for name in named if "-light." in name} < named
    assert all(path.stat().st_size < 40_000 for path in files.values())
