"""Heads out of checkpoints in every published layout, and what is wrong with others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxcel.config import Settings
from mlxcel.engine.prepare import make_drafter
from mlxcel.errors import LoadError
from mlxcel.models.target import Target
from mlxcel.runtime.loader import load_checkpoint
from mlxcel.runtime.mtp_files import load_published_mtp
from tests.support import tiny
from tests.support.checkpoints import write_tiny_llama
from tests.support.qwen import KINDS, write_folder, write_qwen


def target_of(folder: Path) -> Target:
    return load_checkpoint(folder, cache_dir=folder, lean=False).target


def assert_equal(head: Any, wanted: dict[str, mx.array], tolerance: float = 1e-6) -> None:
    found = dict(tree_flatten(head.parameters()))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert mx.allclose(found[name], value, atol=tolerance).item(), name


@pytest.mark.parametrize("form", ["published", "converted"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_inside_the_targets_checkpoint(tmp_path: Path, kind: str, form: str) -> None:
    folder, wanted = write_qwen(tmp_path / "m", kind, form=form)
    head, files = load_published_mtp(folder, target_of(folder))
    assert_equal(head, wanted)
    assert [file.path.name for file in files] == ["model.safetensors"]


def test_a_quantized_conversion_stays_quantized(tmp_path: Path) -> None:
    folder, wanted = write_qwen(tmp_path / "m", form="converted", bits=4)
    head, _ = load_published_mtp(folder, target_of(folder))
    assert head.fc.bits == 4
    assert_equal(head, wanted)


@pytest.mark.parametrize("prefix", ["", "mtp."])
@pytest.mark.parametrize("raw", [False, True], ids=["multipliers", "as published"])
def test_a_folder_of_its_own(tmp_path: Path, prefix: str, raw: bool) -> None:
    folder, wanted = write_qwen(tmp_path / "m", keep=False)
    tensors = {
        prefix + name: value - 1 if raw and value.ndim == 1 else value
        for name, value in wanted.items()
    }
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "qwen3_5_mtp"}
    own = write_folder(tmp_path / "head", config, tensors)
    head, _ = load_published_mtp(own, target_of(folder))
    assert_equal(head, wanted)


def test_the_shard_that_holds_it_is_enough(tmp_path: Path) -> None:
    """Of the original, beside a conversion that has dropped it."""
    served, _ = write_qwen(tmp_path / "served", form="converted", keep=False)
    original, wanted = write_qwen(tmp_path / "original")
    arrays: Any = mx.load(str(original / "model.safetensors"))
    parts = {name: value for name, value in arrays.items() if name.startswith("mtp.")}
    some = tmp_path / "some"
    write_folder(some, json.loads((original / "config.json").read_text()), parts)
    shard = "model-00002-of-00002.safetensors"
    (some / "model.safetensors").rename(some / shard)
    index = {name: shard if name in parts else "model-00001-of-00002.safetensors"
             for name in arrays}  # fmt: skip
    (some / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    head, files = load_published_mtp(some, target_of(served))
    assert_equal(head, wanted)
    assert [file.path.name for file in files] == [shard]
    (some / shard).rename(some / "model-00001-of-00002.safetensors")
    with pytest.raises(LoadError, match=f"{shard}: missing; model.safetensors.index.json puts"):
        load_published_mtp(some, target_of(served))


def test_a_conversion_that_dropped_it_says_where_to_get_it(tmp_path: Path) -> None:
    folder, _ = write_qwen(tmp_path / "m", keep=False)
    with pytest.raises(LoadError) as caught:
        load_published_mtp(folder, target_of(folder))
    text = str(caught.value)
    assert "no tensor is named mtp.*" in text
    assert "mtp:FOLDER" in text
    assert "original checkpoint" in text


def test_heads_that_are_not_whole(tmp_path: Path) -> None:
    folder, wanted = write_qwen(tmp_path / "m", keep=False)
    target = target_of(folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "qwen3_5_mtp"}
    parts = dict(wanted)
    del parts["fc.weight"]
    own = write_folder(tmp_path / "lacks", config, parts)
    with pytest.raises(LoadError, match=r"the head lacks fc\.weight"):
        load_published_mtp(own, target)
    own = write_folder(tmp_path / "more", config, wanted | {"layers.1.extra": mx.ones((2,))})
    with pytest.raises(LoadError, match=r"no part of this target's head: layers\.1\.extra"):
        load_published_mtp(own, target)
    own = write_folder(tmp_path / "shape", config, wanted | {"fc.weight": mx.ones((32, 32))})
    with pytest.raises(LoadError, match=r"fc\.weight of shape \(32, 32\), but .* \(32, 64\)"):
        load_published_mtp(own, target)


def test_checked_before_a_weight_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    folder, wanted = write_qwen(tmp_path / "m", keep=False)
    target = target_of(folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "qwen3_5_mtp"}
    config["text_config"]["vocab_size"] = 99
    own = write_folder(tmp_path / "head", config, wanted)

    def never(path: str) -> Any:
        raise AssertionError(f"read {path}")

    monkeypatch.setattr(mx, "load", never)
    with pytest.raises(LoadError, match="vocab_size is 99"):
        load_published_mtp(own, target)


def test_a_target_of_another_family(tmp_path: Path) -> None:
    folder, _ = write_qwen(tmp_path / "m")
    target = tiny.loaded(tiny.gemma3_model()).target
    with pytest.raises(LoadError, match="no MTP head is known for it"):
        load_published_mtp(folder, target)


def test_the_head_of_another_checkpoint(tmp_path: Path) -> None:
    served, _ = write_qwen(tmp_path / "served", form="converted", keep=False)
    original, _ = write_qwen(tmp_path / "original")
    settings = Settings(cache_dir=tmp_path)
    model = load_checkpoint(served, cache_dir=tmp_path)
    drafter = make_drafter(f"mtp:{original}", model, settings)
    assert drafter is not None
    assert drafter.kind == "mtp"
    quantized = make_drafter(f"mtp:{original}", model, replace(settings, drafter_bits="4"))
    assert quantized is not None
    assert drafter.fingerprint != quantized.fingerprint
    with pytest.raises(LoadError, match="is no folder here, and no hub id"):
        make_drafter("mtp:no/such/folder", model, settings)
    with pytest.raises(LoadError, match="no tensor is named mtp"):
        make_drafter("mtp", model, settings)


def test_a_recurrent_model_is_no_draft_model(tmp_path: Path) -> None:
    folder, _ = write_qwen(tmp_path / "m")
    other = write_tiny_llama(tmp_path / "llama")
    settings = Settings(cache_dir=tmp_path)
    model = load_checkpoint(other, cache_dir=tmp_path)
    with pytest.raises(LoadError, match="recurrent layers, whose state cannot be stepped back"):
        make_drafter(folder, model, settings)
