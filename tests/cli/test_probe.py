"""``mlxcel probe``: tables, JSON, plots and exit statuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner, Result

from mlxcel.cli import probe as module
from mlxcel.cli.errors import friendly
from mlxcel.decide.chips import identify
from mlxcel.decide.exactness import ExactnessRecord, unprobed
from mlxcel.decide.kernels import decide_kernels
from mlxcel.engine import exactness
from mlxcel.hardware.kernels import ROWS, KernelTimes
from mlxcel.runtime import kernel_profile
from tests.support.checkpoints import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", bits=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and kernels that take no time to measure."""
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path / "cache"))

    def measure(projections: Any, dtype: mx.Dtype, **options: Any) -> KernelTimes:
        cost = {"stored": 1.0, "dense": 0.1}
        samples = {
            (p.name, f, r): ((1 + cost[f] * (r - 1)) * 1e-3,)
            for p in projections for f in p.forms for r in ROWS
        }  # fmt: skip
        return KernelTimes(
            projections=tuple(projections), dtype="float32", samples=samples, seconds=0.5,
            skipped={("head", "none"): "no room"},
        )  # fmt: skip

    monkeypatch.setattr(kernel_profile, "measure_kernels", measure)
    return tmp_path / "cache"


def invoke(*args: Any) -> Result:
    class Group(type(module.probe)):  # type: ignore[misc]
        def main(self, *rest: Any, **more: Any) -> Any:
            return friendly(super().main, *rest, **more)

    group = Group(name="probe", commands=module.probe.commands)
    return CliRunner().invoke(group, [str(arg) for arg in args])


def test_kernels_shows_a_table_and_the_verdict(folder: Path, cache: Path) -> None:
    result = invoke("kernels", "--model", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    for text in (
        "measured in 0.5 s", "mlp stored", "head dense", "pass dense", "Serve dense", "wide",
        "narrow", "4-bit, groups of 32", "Not timed: head none: no room",
    ):  # fmt: skip
        assert text in " ".join(result.stdout.split())
    assert "from the cache" in " ".join(invoke("kernels", "--model", folder).stdout.split())
    assert "measured in" in invoke("kernels", "--model", folder, "--refresh").stdout
    assert len(list((cache / "kernels").iterdir())) == 1


def test_kernels_as_json(folder: Path) -> None:
    result = invoke("kernels", "-m", folder, "--json", "--width", 8)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["verdict"]["serve"] == "dense"
    assert found["verdict"]["width"] == 8
    assert {cell["rows"] for cell in found["cells"]} == set(ROWS)
    assert found["projections"][0]["bits"] == 4
    assert (found["cached"], found["disagreement"]) == (False, None)


def test_kernels_draws_a_plot(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = {}
    for theme in ("light", "dark", "light"):
        path = tmp_path / "kernels.svg"
        assert invoke("kernels", "-m", folder, "--plot", path, "--theme", theme).exit_code == 0
        text = path.read_text()
        assert text.startswith("<?xml")
        assert "stored (narrow)" in text
        assert "dense (wide, served)" in text
        assert drawn.setdefault(theme, text) == text
    assert drawn["light"] != drawn["dark"]


def test_a_plot_without_matplotlib_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else plain(name)
    )
    result = invoke("kernels", "-m", folder, "--plot", tmp_path / "k.svg")
    assert result.exit_code == 2
    assert "matplotlib" in result.stderr
    assert "pip install 'mlxcel[bench]'" in result.stderr
    assert not (tmp_path / "k.svg").exists()


def test_kernels_says_where_the_apple_table_disagrees(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxcel.decide.kernels import disagreement

    def says(verdict: Any, host: Any) -> str:
        return disagreement(verdict, identify("Apple M3 Ultra"))

    monkeypatch.setattr(module, "_disagreement", says)
    shown = " ".join(invoke("kernels", "-m", folder).stdout.split())
    assert "Disagreement: the table of Apple chips says wide for Apple M3 Ultra" in shown
    assert "says wide" in json.loads(invoke("kernels", "-m", folder, "--json").stdout)[
        "disagreement"
    ]


def test_exactness_passes_and_is_kept(folder: Path, cache: Path) -> None:
    result = invoke("exactness", "-m", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "not vetoed (required: token)" in " ".join(result.stdout.split())
    found = json.loads(invoke("exactness", "-m", folder, "--json").stdout)
    assert found["level"] in ("bitwise", "token")
    assert (found["width"], found["vetoed"], found["dtype"]) == (4, False, "float32")
    assert len(list((cache / "exactness").iterdir())) == 1
    for weights in ("stored", "dense"):
        shown = invoke("exactness", "-m", folder, "--json", "--weights", weights, "--width", 2)
        assert json.loads(shown.stdout)["weights"] == weights


def test_exactness_in_both_numerics(folder: Path, cache: Path) -> None:
    for numerics, width in (("fast", 4), ("invariant", 4), ("invariant", 6)):
        asked = ("exactness", "-m", folder, "--numerics", numerics, "--width", width)
        found = json.loads(invoke(*asked, "--json").stdout)
        assert (found["numerics"], found["width"], found["price"]) == (numerics, width, None)
        assert f"{numerics} numerics" in " ".join(invoke(*asked).stdout.split())
        if numerics == "invariant":
            assert found["level"] == "bitwise"
    assert len(list((cache / "exactness").iterdir())) == 3


def test_the_price_is_measured_when_asked_for(folder: Path) -> None:
    shown = " ".join(invoke("exactness", "-m", folder, "--price").stdout.split())
    assert "price of invariant 4 tokens per row in every pass; classic step: " in shown
    assert "round of 4: " in shown
    found = json.loads(invoke("exactness", "-m", folder, "--price", "--json").stdout)["price"]
    assert (found["block"], found["width"], found["equal"]) == (4, 4, True)
    assert found["classic"]["low"] <= found["classic"]["ratio"] <= found["classic"]["high"]


@pytest.mark.parametrize(
    ("level", "required", "status"),
    [("divergent", "token", 1), ("divergent", "off", 1), ("token", "token", 0),
     ("token", "bitwise", 1), ("bitwise", "bitwise", 0)],
)  # fmt: skip
def test_exit_statuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, level: Any, required: str, status: int
) -> None:
    record = ExactnessRecord(
        level=level, width=4, reason="made in a test", draws=1, layer=3, first_position=2,
        first_draw="8 tokens" if level == "divergent" else "",
    )  # fmt: skip
    monkeypatch.setattr(exactness, "exactness_of", lambda *a, **k: record)
    monkeypatch.setenv("MLXCEL_MTP_EXACTNESS", required)
    result = invoke("exactness", "-m", folder)
    assert result.exit_code == status
    text = " ".join(result.stdout.split())
    assert f"{level}: made in a test" in text
    assert "position 2" in text
    assert invoke("exactness", "-m", folder, "--json").exit_code == status


def test_a_probe_that_did_not_run_is_a_decline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "exactness_of", lambda *a, **k: unprobed(4, "no rewinding"))
    result = invoke("exactness", "-m", folder)
    assert result.exit_code == 1
    assert "not probed: no rewinding" in " ".join(result.stdout.split())


@pytest.mark.parametrize("width", [1, 17])
def test_a_bad_width_is_a_usage_error(folder: Path, width: int) -> None:
    assert invoke("exactness", "-m", folder, "--width", width).exit_code == 2


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for command in ("kernels", "exactness"):
        result = invoke(command, "-m", tmp_path / "nothing")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_the_figures_of_the_test_are_what_they_claim() -> None:
    times = {("mlp", "stored"): {1: 1.0, 4: 4.0}, ("mlp", "dense"): {1: 1.0, 4: 1.3}}
    verdict = decide_kernels(times, {"mlp": 1.0})
    assert (verdict.wide("stored"), verdict.wide("dense")) == (False, True)
