"""EAGLE heads from folders of every spelling, and what is wrong with others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxcel.config import Settings
from mlxcel.engine.prepare import make_drafter
from mlxcel.errors import LoadError
from mlxcel.models.drafters.eagle3 import Eagle3Head
from mlxcel.models.target import Target
from mlxcel.runtime.eagle_files import eagle_by_tensors, load_eagle
from mlxcel.runtime.loader import load_checkpoint
from tests.support import tiny
from tests.support.checkpoints import write_tiny_llama
from tests.support.eagle import (
    KINDS,
    LAYERS,
    USUAL,
    config_of,
    draft_ids,
    speculators_config,
    tensors_of,
    tiny_head,
    write_folder,
)

Tensors = dict[str, mx.array]


@pytest.fixture
def target() -> Target:
    return Target(tiny.llama_model(layers=LAYERS), {})


def config_for(kind: str, vocab: int = tiny.VOCAB, **more: Any) -> dict[str, Any]:
    drafts = int(draft_ids(vocab).size) if kind == "eagle3" else None
    return config_of(vocab, drafts, **more)


def written(
    folder: Path,
    kind: str,
    target: Target,
    change: Callable[[Tensors], Any] | None = None,
    **more: Any,
) -> Path:
    """A head in the authors' spelling; ``change`` alters its tensors in place."""
    tensors = tensors_of(tiny_head(kind, target))
    if change is not None:
        change(tensors)
    return write_folder(folder, config_for(kind, target.vocab_size, **more), tensors)


@pytest.mark.parametrize("spelling", ["authors", "speculators"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling(tmp_path: Path, target: Target, kind: str, spelling: str) -> None:
    made = tiny_head(kind, target)
    target.tap(())
    config = config_for(kind)
    if spelling == "speculators":
        config = speculators_config(config, kind)
    folder = write_folder(tmp_path / "head", config, tensors_of(made, spelling))
    head, files = load_eagle(folder, target)
    assert [file.path.name for file in files] == ["model.safetensors"]
    found, wanted = (dict(tree_flatten(each.parameters())) for each in (head, made))
    assert found.keys() == wanted.keys()
    assert all(mx.array_equal(found[name], value) for name, value in wanted.items())
    target.hidden(mx.array([[1, 2, 3]], mx.uint32), [None] * LAYERS)
    taps = target.tapped()
    if kind == "eagle":
        assert taps is None
    else:
        assert taps is not None
        assert taps.shape == (1, 3, 3 * 32)
        assert head.taps == USUAL
        assert head.draft_ids is not None
        assert head.draft_ids.tolist() == draft_ids().tolist()


def test_a_head_without_a_bias(tmp_path: Path, target: Target) -> None:
    """The authors' code has one unless told otherwise, vLLM's has none: the tensors tell."""
    folder = written(tmp_path / "a", "eagle", target, lambda t: t.pop("fc.bias"))
    head, _ = load_eagle(folder, target)
    assert "bias" not in head.fc
    folder = written(tmp_path / "b", "eagle", target, lambda t: t.pop("fc.bias"), bias=True)
    with pytest.raises(LoadError, match=r"the head lacks fc\.bias"):
        load_eagle(folder, target)


def test_kinds_by_tensors(tmp_path: Path, target: Target) -> None:
    assert eagle_by_tensors(written(tmp_path / "one", "eagle", target)) == "eagle"
    assert eagle_by_tensors(written(tmp_path / "three", "eagle3", target)) == "eagle3"
    assert eagle_by_tensors(write_tiny_llama(tmp_path / "llama", layers=1)) is None
    assert eagle_by_tensors(write_tiny_llama(tmp_path / "two")) is None
    assert eagle_by_tensors(tmp_path) is None


def test_a_pickle_says_how_to_convert_it(tmp_path: Path, target: Target) -> None:
    folder = written(tmp_path / "head", "eagle", target)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert eagle_by_tensors(folder) == "eagle"
    with pytest.raises(LoadError, match=r"pytorch_model\.bin: .* pickle .*save_file") as caught:
        load_eagle(folder, target)
    assert "weights_only=True" in str(caught.value)
    (folder / "pytorch_model.bin").unlink()
    (folder / "config.json").write_text(json.dumps(config_of() | {"model_type": "eagle"}))
    with pytest.raises(LoadError, match=r"no weights; expected \*\.safetensors"):
        load_eagle(folder, target)


def changed(name: str, make: Callable[[mx.array], mx.array]) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name])

    return change


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("eagle", lambda t: t.pop("layers.0.mlp.up_proj.weight"), "the head lacks layers.0.mlp"),
        ("eagle", changed("fc.weight", lambda v: v[:, :48]), r"fc.weight has shape \(32, 48\)"),
        ("eagle", lambda t: t.update(x=mx.ones((2,))), "no part of such a head: x"),
        ("eagle3", lambda t: t.pop("d2t"), "the head lacks d2t"),
        ("eagle3", changed("fc.weight", lambda v: v[:, :64]), r"expected \(32, 96\)"),
        ("eagle3", changed("lm_head.weight", lambda v: v[:9]), r"lm_head.weight has shape \(9"),
        ("eagle3", lambda t: t.update(d2t=t["d2t"] + 40), "d2t leads out of the vocabulary"),
        (
            "eagle3",
            lambda t: t.update(d2t=t["d2t"] + mx.arange(42) * -1 + 3),
            "d2t names an id twice",
        ),
        ("eagle3", lambda t: t.update(t2d=mx.ones((64,), mx.bool_)), "d2t and t2d name different"),
    ],
)
def test_heads_that_are_refused(
    tmp_path: Path, target: Target, kind: str, change: Any, message: str
) -> None:
    folder = written(tmp_path / "head", kind, target, change)
    target.tap(())
    with pytest.raises(LoadError, match=message):
        load_eagle(folder, target)
    assert target.tapped() is None


def test_ids_in_place_of_offsets_are_found_out(tmp_path: Path, target: Target) -> None:
    """As one trap has it: their sums leave the vocabulary, or are not the ids that are marked."""
    ids = mx.array(np.array(draft_ids()).astype(np.int64))
    folder = written(tmp_path / "head", "eagle3", target, lambda t: t.update(d2t=ids))
    with pytest.raises(LoadError, match="must hold offsets"):
        load_eagle(folder, target)


@pytest.mark.parametrize("kind", KINDS)
def test_checked_before_a_weight_is_read(
    tmp_path: Path, target: Target, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "head", kind, target)
    (folder / "config.json").write_text(json.dumps(config_for(kind) | {"vocab_size": 99}))

    def never(path: str) -> Any:
        raise AssertionError(f"read {path}")

    monkeypatch.setattr(mx, "load", never)
    with pytest.raises(LoadError, match="vocab_size is 99, but the target's is 64"):
        load_eagle(folder, target)


def test_a_target_with_too_few_layers(tmp_path: Path, target: Target) -> None:
    folder = written(tmp_path / "head", "eagle3", target)
    few = Target(tiny.llama_model(), {})
    with pytest.raises(LoadError, match=r"config\.json: .* a target of 2 layers"):
        load_eagle(folder, few)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_head_stays_quantized(tmp_path: Path, target: Target, kind: str) -> None:
    made = tiny_head(kind, target, intermediate_size=64)  # whole groups
    tables = {k: v for k, v in tensors_of(made).items() if k in ("d2t", "t2d")}
    nn.quantize(made, group_size=32, bits=4)
    tensors = dict(tree_flatten(made.parameters())) | tables
    config = config_for(kind, intermediate_size=64)
    head, _ = load_eagle(write_folder(tmp_path / "head", config, tensors), target)
    assert head.fc.bits == 4
    assert mx.array_equal(head.fc.scales, made.fc.scales)


def test_an_embedding_of_its_own(tmp_path: Path, target: Target) -> None:
    """Kept where it differs from the target's, and where the head has another width."""
    for at, same in enumerate((True, False)):
        made = tiny_head("eagle3", target, own_embedding=True)
        if same:
            made.embed_tokens.weight = target.body.embed_tokens.weight
        folder = write_folder(tmp_path / str(at), config_for("eagle3"), tensors_of(made))
        head, _ = load_eagle(folder, target)
        assert ("embed_tokens" in head) is not same
    config = config_for("eagle3", hidden_size=16, target_hidden_size=32)
    narrow = write_folder(tmp_path / "narrow", config, tensors_of(tiny_head("eagle3", target)))
    with pytest.raises(LoadError, match="needs an embedding of its own"):
        load_eagle(narrow, target)
    made = tiny_head("eagle3", target, own_embedding=True, hidden_size=16, target_hidden_size=32)
    head, _ = load_eagle(write_folder(tmp_path / "n", config, tensors_of(made)), target)
    assert isinstance(head, Eagle3Head)
    assert head.reduce(mx.zeros((1, 2, 96))).shape == (1, 2, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_follows_the_form(tmp_path: Path, kind: str) -> None:
    settings = Settings(cache_dir=tmp_path, max_width=4)
    folder = write_tiny_llama(tmp_path / "target", layers=LAYERS)
    model = load_checkpoint(folder, cache_dir=tmp_path)
    own = written(tmp_path / "head", kind, model.target)
    plain = make_drafter(own, model, settings)
    quantized = make_drafter(own, model, replace(settings, drafter_bits="4"))
    assert plain is not None
    assert quantized is not None
    assert plain.fingerprint != quantized.fingerprint
    assert "projections at 4 bits" in quantized.weights
