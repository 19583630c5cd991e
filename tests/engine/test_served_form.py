"""The form of the weights and of a head's projections follow the kernel profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.config import Settings
from mlxcel.decide.chips import identify
from mlxcel.decide.kernels import KernelVerdict, decide_kernels
from mlxcel.decide.rows import RowRule
from mlxcel.engine import served_form
from mlxcel.engine.governor import Facts, facts_of
from mlxcel.engine.prepare import build_engine, load_model
from mlxcel.engine.served_form import kernel_verdict, pass_rule, preference
from mlxcel.errors import LoadError
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from tests.support.checkpoints import write_tiny_llama
from tests.support.kernels import Kernels
from tests.support.running import one


def load(tmp_path: Path, weights: str) -> LoadedModel:
    return load_checkpoint(
        write_tiny_llama(tmp_path / "tiny", bits=4), cache_dir=tmp_path, weights=weights
    )


@pytest.mark.measured
def test_the_verdict_of_this_host_is_kept(tmp_path: Path) -> None:
    model, settings = load(tmp_path, "stored"), Settings(cache_dir=tmp_path)
    first = kernel_verdict(model, settings)
    assert kernel_verdict(model, settings).to_dict() == first.to_dict()
    assert len(list((tmp_path / "kernels").glob("*.json"))) == 1


# -- weights=auto ---------------------------------------------------------------------


def quantized_folder(tmp_path: Path, name: str = "tiny") -> Path:
    return write_tiny_llama(tmp_path / name, bits=4)


@pytest.mark.parametrize(
    ("stored", "dense", "form", "said"),
    [
        ((2.0, 2.0), (1.0, 0.0), "dense", "2.00 times as fast as stored at 1 row and 8.00 times"),
        ((1.0, 0.1), (2.0, 0.2), "stored", "2.00 times as fast as dense at 1 row and 2.00 times"),
        ((1.0, 0.0), (0.96, 0.0), "stored", "0.96 times as fast as dense at 1 row and 0.96"),
        ((1.0, 1.0), (1.5, 0.0), "dense", "0.67 times as fast as stored at 1 row and 2.67"),
    ],
)
def test_auto_serves_what_the_profile_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: Any, dense: Any, form: str, said: str
) -> None:
    kernels = Kernels(monkeypatch, stored=stored, dense=dense)
    folder, settings = quantized_folder(tmp_path), Settings(cache_dir=tmp_path)
    model = load_model(folder, settings)
    assert model.representation.form == form
    assert said in model.representation.reason
    assert "by the kernel profile of 20" in model.representation.reason
    quantized = any(hasattr(m, "bits") for _, m in model.target.model.named_modules())
    assert quantized == (form == "stored")
    again = load_model(folder, settings)
    assert again.representation == model.representation
    kernel_verdict(model, settings)
    assert kernels.runs == 1  # the gate uses the same profile


def test_a_dense_form_that_was_not_timed_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kernels(monkeypatch, stored=(1.0, 1.0))
    model = load_model(quantized_folder(tmp_path), Settings(cache_dir=tmp_path))
    assert model.representation.form == "stored"
    assert model.representation.reason.startswith("no other form was timed by the kernel profile")


def test_only_what_has_a_choice_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch, stored=(1.0, 1.0), dense=(1.0, 0.0))
    folder = quantized_folder(tmp_path)
    for weights in ("stored", "dense"):
        load_model(folder, Settings(cache_dir=tmp_path, weights=weights))  # type: ignore[arg-type]
    load_model(write_tiny_llama(tmp_path / "plain"), Settings(cache_dir=tmp_path))
    assert kernels.runs == 0
    assert not (tmp_path / "kernels").exists()


def test_a_draft_model_goes_by_single_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense wins a verify of four rows and loses a single step."""
    Kernels(monkeypatch, stored=(1.0, 1.0), dense=(1.5, 0.0))
    folder, settings = quantized_folder(tmp_path), Settings(cache_dir=tmp_path)
    assert load_model(folder, settings).representation.form == "dense"
    assert load_model(folder, settings, verify_share=0.0).representation.form == "stored"
    engine = build_engine(folder, quantized_folder(tmp_path, "drafter"), settings)
    assert engine.model.representation.form == "dense"
    assert engine.drafter is not None


def test_a_profile_that_cannot_be_taken_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> Any:
        raise LoadError("no projection that could be timed was found")

    monkeypatch.setattr(served_form, "projections_of", nothing)
    model = load_model(quantized_folder(tmp_path), Settings(cache_dir=tmp_path))
    assert "by rule" in model.representation.reason
    assert "no projection that could be timed was found" in model.representation.reason


def test_the_width_of_the_settings_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernels(monkeypatch, stored=(1.0, 0.5), dense=(2.0, 0.0))
    network = load(tmp_path, "stored").target
    for width, form in ((2, "stored"), (8, "dense")):
        prefer = preference(Settings(cache_dir=tmp_path, default_width=width))
        assert prefer(network.model, network.config).form == form


@pytest.mark.measured
@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="a statement about CPUs")
def test_the_demo_model_is_dense_on_a_cpu_and_loads_quickly_again(
    demo_folder: Path, tmp_path: Path
) -> None:
    settings = Settings(cache_dir=tmp_path)
    first = load_model(demo_folder, settings).representation
    assert first.form == "dense"
    assert "times as fast as stored at 1 row and" in first.reason
    [path] = (tmp_path / "kernels").iterdir()
    written = path.stat().st_mtime_ns
    assert load_model(demo_folder, settings).representation == first
    assert path.stat().st_mtime_ns == written


# -- padding -------------------------------------------------------------------------

# 8 rows are cheaper than 2 to 7, as on an H200, but for the stored form only.
TIMES = {
    ("mlp", "stored"): {1: 87.0, 2: 153.0, 4: 286.0, 8: 71.0},
    ("mlp", "dense"): {1: 80.0, 2: 88.0, 4: 104.0, 8: 195.0},
}


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A kernel profile of our own; how often it was asked for."""
    asked: list[int] = []

    def verdict(*_: Any) -> KernelVerdict:
        asked.append(1)
        return decide_kernels(TIMES, {"mlp": 1.0})

    monkeypatch.setattr(served_form, "kernel_verdict", verdict)
    monkeypatch.setattr("mlxcel.engine.governor.kernel_verdict", verdict)
    return asked


def test_the_form_that_is_served_decides_about_padding(tmp_path: Path, profile: list[int]) -> None:
    settings = Settings(cache_dir=tmp_path)
    stored, dense = (load(tmp_path / name, name) for name in ("stored", "dense"))
    assert [pass_rule(model, settings).tokens(1, 4) for model in (stored, dense)] == [8, 4]
    invariant = Settings(cache_dir=tmp_path, numerics="invariant")
    assert [pass_rule(model, invariant).block for model in (stored, dense)] == [8, 4]


def test_without_a_profile_nothing_is_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise LoadError("no projection that could be timed was found")

    monkeypatch.setattr(served_form, "kernel_verdict", fail)
    model = load(tmp_path, "stored")
    assert pass_rule(model, Settings(cache_dir=tmp_path)) == RowRule()
    assert "no projection that could be timed" in caplog.text
    assert pass_rule(model, Settings(cache_dir=tmp_path, numerics="invariant")).block == 4


@pytest.mark.parametrize(
    ("numerics", "classic", "verify"), [("fast", 1, 8), ("invariant", 8, 8)]
)
def test_an_engine_feeds_what_the_profile_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: list[int],
    numerics: Any,
    classic: int,
    verify: int,
) -> None:
    settings = Settings(
        cache_dir=tmp_path, numerics=numerics, weights="stored", enable_mtp_b1=True,
        mtp_exactness="off",
    )  # fmt: skip
    engine = build_engine(write_tiny_llama(tmp_path / "tiny", bits=4), "lookup", settings)
    assert profile == []  # not before it is needed
    fed: list[tuple[int, int]] = []
    plain = Batch.verify

    def watch(self: Batch, *args: Any, pad_to: int, **more: Any) -> Any:
        check = plain(self, *args, pad_to=pad_to, **more)
        fed.append((check.packed.shape[2], check.states.shape[1]))
        return check

    monkeypatch.setattr(Batch, "verify", watch)
    outputs = [one(engine, (1, 2, 3, 1, 2, 3), width, max_tokens=60).token_ids for width in (1, 4)]
    assert outputs[0] == outputs[1]
    assert {tokens for width, tokens in fed if width == 1} == {classic}
    assert {tokens for width, tokens in fed if width > 1} == {verify}


def test_numerics_and_padding_are_in_the_key_of_verdicts(
    tmp_path: Path, profile: list[int]
) -> None:
    model = load(tmp_path, "stored")

    def facts(chip: str = "Apple M1 Ultra", **more: Any) -> Facts:
        return facts_of(model, "d", Settings(cache_dir=tmp_path, **more), chip=identify(chip))

    fast, invariant = facts(), facts(numerics="invariant")
    keys = [found.key(width) for found in (fast, invariant) for width in (4, 8)]
    assert [key.numerics for key in keys] == ["fast", "fast", "invariant", "invariant"]
    padding = [key.kernel.partition(", ")[2] for key in keys[:3]]
    assert padding == ["4 as 8", "", "1 as 8, 4 as 8"]
    assert len({key.digest for key in keys}) == 4


def test_classic_steps_as_dear_as_verifies_make_the_gate_run(
    tmp_path: Path, profile: list[int]
) -> None:
    model, chip = load(tmp_path, "stored"), identify("Apple M1 Ultra")
    fast = facts_of(model, "d", Settings(cache_dir=tmp_path), chip=chip).static
    invariant = Settings(cache_dir=tmp_path, numerics="invariant")
    slow = facts_of(model, "d", invariant, chip=chip).static
    assert (fast.run, slow.run) == (False, True)
    assert "with classic steps of 8 rows too" in slow.reason
