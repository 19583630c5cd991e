"""Files of a measured record: report and plots say what the record says."""

from __future__ import annotations

import errno
import hashlib
import json
import xml.etree.ElementTree as ET

import pytest

from mlxcel.bench.arms import digest_of
from mlxcel.bench.guarded import unguarded
from mlxcel.bench.protocol import Plan
from mlxcel.bench.record_plots import (
    acceptance_svg,
    by_position,
    cost_sweeps,
    plots_of,
    speedup_svg,
)
from mlxcel.bench.report import HEAD, markdown, row_cells
from mlxcel.bench.results import prepare_folder, write_results
from mlxcel.decide.recompute import complaints
from mlxcel.decide.record_json import parse_record
from mlxcel.errors import ConfigError
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import measured_record

PLAN = Plan(prompts={"code": "c", "my prompt": "p"}, widths=(2, 4, 6), tokens=121)


@pytest.fixture(scope="module")
def record():
    return measured_record(SimulatedHost(noise=0.002), PLAN, name="a-record")


@pytest.fixture(scope="module")
def small():
    """One prompt, two widths: few plots to draw."""
    plan = Plan(prompts={"my prompt": "p"}, widths=(2, 4), tokens=41)
    return measured_record(SimulatedHost(noise=0.002), plan, name="a-record")


def test_the_report_has_every_row_and_figure(record):
    text = markdown(record)
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(record.rows)
    for row, line in zip(record.rows, table[2:], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells == row_cells(row)
        assert len(cells) == len(HEAD)
        assert f"{row.speedup:.3f}x" in cells
        assert f"{row.interval[0]:.3f} to {row.interval[1]:.3f}" in cells
    assert "weights dense float32, kernels wide" in text
    assert "exactness bitwise" in text
    assert "`OMP_NUM_THREADS=2`" in text
    assert "mlxcel bench verify a-record.json" in text


def test_the_report_says_what_a_sweep_says(record):
    text = markdown(record)
    [fit, other] = record.fits
    assert f"code: a round costs {fit.a:.2f} + {fit.b:.3f} K classic steps" in text
    assert f"my prompt: a round costs {other.a:.2f}" in text
    assert "Best width: 6" in text
    assert "Not to be published" not in text


def test_the_report_says_what_speaks_against_rows():
    same = tuple(range(121))
    host = SimulatedHost(answers={7: (*same[:50], 9, *same[51:])})
    plan = Plan(prompts={"code": "c", "prose": "p"}, widths=(4,), tokens=121)
    text = markdown(measured_record(host, plan, guards=unguarded))
    assert "## Not to be published" in text
    assert "- every row: not guarded: the quiet gate before the runs did not run" in text
    assert "- code, width 4: first difference at token 50 (top-2 margin 2.50e-01)" in text


def test_files_lie_side_by_side_and_can_be_read_again(small, tmp_path):
    pytest.importorskip("matplotlib")
    prepare_folder(tmp_path / "out", "a-record")
    paths = write_results(small, tmp_path / "out")
    assert [path.name for path in paths[:2]] == ["a-record.json", "a-record.md"]
    assert parse_record(json.loads(paths[0].read_text())) == small
    assert complaints(json.loads(paths[0].read_text())) == []
    runs = [line for line in paths[0].read_text().splitlines() if '"arm"' in line]
    assert len(runs) == len(small.rows) * (3 * 4 + 2)
    report = paths[1].read_text()
    for path in paths[2:]:
        assert ET.fromstring(path.read_text()).tag.endswith("svg")
        assert f'"{path.name}"' in report
    names = {path.name.removeprefix("a-record-") for path in paths[2:]}
    assert names == {
        f"{what}-{theme}.svg"
        for what in ("speedup", "acceptance", "cost-my-prompt")
        for theme in ("light", "dark")
    }


def test_nothing_is_overwritten(record, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "a-record.json").write_text("{}")
    with pytest.raises(ConfigError, match="is there already"):
        write_results(record, tmp_path)
    with pytest.raises(ConfigError, match="is there already"):
        prepare_folder(tmp_path, "a-record")
    with pytest.raises(ConfigError, match="cannot be written to"):
        prepare_folder(tmp_path / "a-record.json" / "inner", None)


@pytest.mark.parametrize("name", ["a/b", "../a", "My-Run", "", "-a", "a b"])
def test_an_id_that_no_record_can_have_is_refused_before_measuring(tmp_path, name):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="small letters, digits, points and hyphens"):
        prepare_folder(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_takes_no_file_is_refused_before_measuring(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def full(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("mlxcel.bench.results.tempfile.TemporaryFile", full)
    with pytest.raises(ConfigError, match=r"cannot be written to \(Read-only file system\)"):
        prepare_folder(tmp_path, None)


def test_plots_show_the_figures_and_are_the_same_again(record):
    pytest.importorskip("matplotlib")
    plots = plots_of(record)
    assert plots["speedup-light"] == speedup_svg(record, "light")
    assert plots["acceptance-dark"] == acceptance_svg(record, "dark")
    row = record.rows[0]
    assert f"code, K = 2: {row.speedup:.2f} ({row.interval[0]:.2f} to" in plots["speedup-light"]
    shares = ", ".join(f"{share:.2f}" for share in by_position(record.rows[2]))
    assert f"code, K = 6: {shares}" in plots["acceptance-dark"]
    assert "fit over stated widths" in plots["cost-code-light"]
    assert all(len(text.encode()) < 60_000 for text in plots.values())


def test_acceptance_by_position_is_counted_over_all_verifies(record):
    for row in record.rows:
        shares = by_position(row)
        runs = row.raw.of("speculative")
        rounds = sum(run.rounds for run in runs)
        assert len(shares) == row.requested_width - 1
        assert sum(shares) * rounds == pytest.approx(row.accepted)
        assert sorted(shares, reverse=True) == list(shares)


def test_one_width_has_no_sweep():
    plan = Plan(prompts={"code": "c"}, widths=(4,), tokens=41)
    assert cost_sweeps(measured_record(SimulatedHost(), plan)) == {}


def test_digest_of_token_ids():
    assert digest_of([1, 23]) == hashlib.sha256(b"1,23").hexdigest() != digest_of([12, 3])
