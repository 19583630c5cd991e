"""Cost-only records: made from times, checked against them, shown to people."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mlxcel.evidence
from mlxcel.bench.cost_plot import cost_svg
from mlxcel.bench.cost_record import CostIdentity, cost_record
from mlxcel.bench.cost_report import cost_markdown, costs_table
from mlxcel.bench.guarded import unguarded
from mlxcel.bench.provenance import collect
from mlxcel.decide.cost_recompute import cost_complaints, figures_of, plain_record, raw_of
from mlxcel.decide.recompute import complaints
from mlxcel.errors import LoadError
from mlxcel.evidence import load_cost_records
from mlxcel.hardware.blas import BlasChoice
from mlxcel.hardware.cost_times import CostTimes, PartKey, PartTime, PassKey, Sample
from mlxcel.hardware.host import Host
from mlxcel.hardware.peaks import peak_of

COST = Path(mlxcel.evidence.__file__).parent / "cost"


def host(chip: str = "NVIDIA H200") -> Host:
    return Host(
        backend="cuda", chip=chip, cores=16, memory_bytes=2**37, available_bytes=2**36,
        gpu_memory_bytes=150 * 10**9, system="Linux", python="3.12.3",
        blas=BlasChoice(name="none", reason="a GPU", active=False), compiler=None,
        versions={"mlx": "0.32.4", "mlx-lm": None},
    )  # fmt: skip


def times(layers: int = 60) -> CostTimes:
    """Stored weights that are narrow below eight rows, dense ones that are wide."""
    passes: dict[PassKey, tuple[Sample, ...]] = {}

    def add(
        stage: Any, form: str, width: int, tokens: int, seconds: float, waited: bool = False
    ) -> None:
        samples = tuple(Sample(seconds * k, 0.1 * seconds) for k in (1.0, 1.01, 0.99))
        passes[PassKey(stage, form, width, tokens, waited)] = samples

    for form in ("stored", "dense"):
        add("classic", form, 1, 1, 0.02)
        add("classic", form, 1, 1, 0.03, waited=True)
        for width in (2, 4, 8):
            wide = form == "dense" or width == 8
            add("verify", form, width, width, 0.024 if wide else 0.02 * width)
            if width < 8:
                add("verify", form, width, 8, 0.025)
            add("head", form, width, width, 0.001)
        add("head", form, 1, 1, 0.001)
        add("draft", form, 1, 1, 0.001)
        add("round", form, 4, 4, 0.03)
    parts = {
        PartKey(name, "stored", 8): PartTime((0.001 * at, 0.0011 * at), 10**9 * at, 1e10)
        for at, name in enumerate(("mlp", "projections", "head"), 1)
    }
    return CostTimes(
        layers=layers, layers_published=60, context=640, columns=768, backend="cuda",
        dtype="bfloat16",
        caches="slot", passes=passes, parts=parts, drafter_bytes=10**8,
        target_bytes={"stored": 17 * 10**9, "dense": 62 * 10**9},
        skipped={"other": "no room"}, seconds=200.0,
    )  # fmt: skip


IDENTITY = CostIdentity(
    geometry="gemma-4-31b", source="made up", target="t", drafter="d",
    target_quantization="4-bit", drafter_quantization="4-bit", batch_capable=True,
    day="2026-11-30",
)  # fmt: skip


def made(layers: int = 60) -> dict[str, Any]:
    with unguarded() as guards:
        report = guards.report()
    provenance = collect(
        host(), kernel=None, exactness=None, command=["/somewhere/mlxcel", "bench"],
        environ={"MLX_PTX_CACHE_DIR": "/private/ptx", "HOME": "/root", "OMP_NUM_THREADS": "2"},
        started=datetime(2026, 11, 30, 22, 10, tzinfo=UTC), seconds=200.0, guards=report,
        cost_only=True,
    )  # fmt: skip
    return cost_record(times(layers), IDENTITY, host(), peak_of("NVIDIA H200"), provenance)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(json.dumps(made()))


def test_a_record_says_where_it_is_from(record: dict[str, Any]) -> None:
    assert record["id"] == "nvidia-h200-gemma-4-31b-cost-2026-11-30"
    assert (record["schema"], record["origin"], record["rows"]) == (2, "measured", [])
    source = record["provenance"]
    assert source["cost_only"] is True
    assert source["environment"] == {"MLX_PTX_CACHE_DIR": "ptx", "OMP_NUM_THREADS": "2"}
    assert source["command"] == ["mlxcel", "bench"]
    assert source["versions"] == record["versions"]
    assert (source["versions"]["mlx"], source["versions"].get("mlx-lm")) == ("0.32.4", None)
    assert source["started"] == "2026-11-30T22:10:00Z"
    assert "random weights" in record["notes"]
    assert (record["cost"]["backend"], record["protocol"]) == ("cuda", "unguarded")
    assert record["cost"]["peak"]["bytes_per_second"] == 4.8e12


def test_a_good_record_has_no_complaints_and_its_figures_come_again(record: dict[str, Any]) -> None:
    assert cost_complaints(record) == complaints(record) == []
    figures = figures_of(record)
    assert figures.serve == record["figures"]["serve"]
    assert figures.forms[0].verify_tokens == 8
    assert figures.forms[0].verify_steps == pytest.approx(1.25)


def test_without_what_is_its_own_it_is_a_record_like_others(record: dict[str, Any]) -> None:
    plain = plain_record(record)
    assert (plain.origin, plain.schema, plain.rows) == ("measured", 2, ())
    assert plain.provenance is not None
    assert plain.provenance.cost_only
    assert {timing.stage for timing in plain.timings} == {"verify", "draft", "round"}
    assert [fit.b for fit in plain.fits] == [fit["b"] for fit in record["fits"]]


def test_fewer_layers_are_in_the_name_and_in_the_notes() -> None:
    record = made(12)
    assert record["id"] == "nvidia-h200-gemma-4-31b-12-layers-cost-2026-11-30"
    assert "12 of 60 layers" in record["notes"]
    assert cost_complaints(record) == []
    classic = next(t for t in record["timings"] if t["stage"] == "classic" and not t["waited"])
    assert classic["value"] == pytest.approx(1.0 + 19.0 * 5)


def derived_places(record: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Paths of every figure that follows from samples."""
    for at, timing in enumerate(record["timings"]):
        for name in ("value", "steps", "spread_percent", "host_share", "kernel"):
            if timing[name] is not None:
                yield "timings", at, name
    for at in range(len(record["parts"])):
        for name in ("milliseconds", "share", "least_milliseconds", "bound"):
            yield "parts", at, name
    for at in range(len(record["fits"])):
        for name in ("a", "b", "largest_residual"):
            yield "fits", at, name
    for name in ("serve", "reason"):
        yield "figures", name
    for at in range(len(record["figures"]["forms"])):
        for name in record["figures"]["forms"][at]:
            yield "figures", "forms", at, name


def test_every_edited_figure_is_refused(record: dict[str, Any]) -> None:
    places = list(derived_places(record))
    assert len(places) > 100
    for *path, name in places:
        edited = copy.deepcopy(record)
        inner = edited
        for step in path:
            inner = inner[step]
        old = inner[name]
        inner[name] = old * 1.001 + 1e-6 if isinstance(old, float) else "edited"
        complaints = cost_complaints(edited, "file")
        assert complaints, (*path, name)
        assert any(name in line and line.startswith("file: ") for line in complaints)


def test_an_edited_sample_is_refused_too(record: dict[str, Any]) -> None:
    edited = copy.deepcopy(record)
    edited["timings"][0]["seconds"][1] *= 1.5
    edited["timings"][0]["seconds"][0] *= 1.5
    assert cost_complaints(edited)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(schema=1), "schema"),
        (lambda r: r["timings"][0].update(seconds=[]), "seconds"),
        (lambda r: r["timings"][0].update(seconds=None), "got null"),
        (lambda r: r["timings"][0].update(seconds=[-1.0]), "positive"),
        (lambda r: r["figures"]["forms"][0].update(draft_steps=10**400), "draft_steps is 1000"),
        (lambda r: r["cost"].update(caches=True), "caches must be one of slot, native"),
        (lambda r: r["cost"].update(skipped=""), "skipped must be an object of texts"),
        (lambda r: r["cost"].update(extra=1), "unknown field"),
        (lambda r: r["cost"]["target_bytes"].update(dense=[[]]), "target_bytes: dense"),
        (lambda r: r["cost"]["peak"].pop("source"), "'source' is missing"),
        (lambda r: r["timings"][0].update(seconds=[10**400]), "positive"),
        (lambda r: r["timings"][0].update(seconds=[float("nan")]), "positive"),
        (lambda r: r["timings"][0].update(seconds=[1e300]), "at most 1e+06 seconds"),
        (lambda r: r.update(protocol="guarded"), "protocol is 'guarded'"),
        (lambda r: r["timings"][0].pop("form"), "form"),
        (lambda r: r["timings"].clear(), "no form"),
        (lambda r: r["cost"].update(layers=61), "layers_published"),
        (lambda r: r["cost"].pop("peak"), "peak"),
        (lambda r: r["cost"].update(backend="abacus"), "backend"),
        (lambda r: r["provenance"].update(cost_only=False), "cost_only"),
        (lambda r: r.pop("parts"), "parts"),
        (lambda r: r["host"].pop("chip"), "chip"),
        (lambda r: r["provenance"].update(commit="abc"), "commit"),
        (lambda r: r.update(surprise=1), "surprise"),
    ],
)
def test_a_damaged_record_is_one_clear_line(
    record: dict[str, Any], change: Any, message: str
) -> None:
    damaged = copy.deepcopy(record)
    change(damaged)
    complaints = cost_complaints(damaged, "file")
    assert len(complaints) == 1
    assert message in complaints[0]


def test_reading_raises_what_checking_says(record: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="'schema' is missing"):
        raw_of({}, "file")


def test_a_folder_of_records_is_read_and_a_damaged_one_named(
    record: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / f"{record['id']}.json"
    path.write_text(json.dumps(record))
    assert load_cost_records(tmp_path) == (record,)
    table = costs_table(load_cost_records(tmp_path))
    assert "| NVIDIA H200 | gemma-4-31b | stored | 20.00 | 1.25 | 8 | 0.050 | 1.50 |" in table
    path.write_text(json.dumps(record | {"fits": []}))
    with pytest.raises(LoadError, match="fits is"):
        load_cost_records(tmp_path)
    path.write_text("[]")
    with pytest.raises(LoadError, match="must be an object"):
        load_cost_records(tmp_path)
    assert load_cost_records(tmp_path / "none") == ()


def test_the_packages_own_are_sound_and_named_after_themselves() -> None:
    for found in load_cost_records():
        assert cost_complaints(found) == []
        assert (COST / f"{found['id']}.json").is_file()


def test_the_page_shows_what_counts(record: dict[str, Any]) -> None:
    page = cost_markdown(record)
    for text in (
        "# gemma-4-31b on NVIDIA H200", "a verify of 4 fed as 8 rows costs **1.25** classic steps",
        "Serve stored", "| stored, fed as 8 | 25.00 (1.25) | 25.00 (1.25) |  |",
        "4.8 TB/s", "Not measured: other: no room.", "waited for", "one draft 0.050",
    ):  # fmt: skip
        assert text in page, text
    lines = page.splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in tables if "share %" in line} == {9}


def test_the_plot_is_the_same_each_time(record: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    light, again = cost_svg(record), cost_svg(record)
    assert light == again != cost_svg(record, "dark")
    for text in ("stored, padded", "dense", "1.6 classic steps", "mlp, stored"):
        assert text in light


def test_peaks_are_known_by_the_chips_name() -> None:
    peak = peak_of("NVIDIA H200")
    assert peak is not None
    assert (peak.bytes_per_second, peak.flops_per_second) == (4.8e12, 989.5e12)
    assert peak_of("NVIDIA H2000") is None
    assert peak_of("AMD EPYC 9654") is None
