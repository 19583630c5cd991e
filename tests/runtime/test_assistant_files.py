"""Assistants from folders: what is missing is named before a weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxcel
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine, make_drafter
from mlxcel.errors import ConfigError, LoadError
from mlxcel.models.target import CacheLayout, Target
from mlxcel.runtime import checkpoint
from mlxcel.runtime.assistant_files import load_assistant
from mlxcel.runtime.loader import load_checkpoint
from tests.support import tiny
from tests.support.assistants import assistant_config, tiny_assistant, write_assistant
from tests.support.checkpoints import vocabulary, write_tiny_gemma4
from tests.support.running import one

VOCAB = len(vocabulary())
PROMPT = tuple((11 * at + 5) % VOCAB for at in range(40))
ORDER = "masked_embedding.token_ordering"


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny.gemma4_model(vocab=VOCAB), {})


def config_of(**more: Any) -> dict[str, Any]:
    return assistant_config(text={"vocab_size": VOCAB}, **more)


def written(
    folder: Path, target: Target, *, ordered: bool = False, **more: mx.array
) -> tuple[Path, Any]:
    made = tiny_assistant(target, ordered=ordered, text={"vocab_size": VOCAB})
    return write_assistant(folder, made, config_of(ordered=ordered), **more), made


def flat(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in tree_flatten(module.parameters())}


@pytest.mark.parametrize("ordered", [False, True], ids=["dense", "ordered"])
def test_a_folder(tmp_path: Path, target: Target, ordered: bool) -> None:
    # A state dict saved as it is also has the tied head, and ids of 64 bits.
    more = {"lm_head.weight": mx.zeros((VOCAB, 32))}
    if ordered:
        order = np.random.default_rng(0).permutation(VOCAB)
        more[ORDER] = mx.array(order.astype(np.int64))
    folder, made = written(tmp_path / "a", target, ordered=ordered, **more)
    found, expected = flat(load_assistant(folder, target)), flat(made)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if name == ORDER:
            assert value.dtype == np.uint32
            np.testing.assert_array_equal(value, order)
        else:
            np.testing.assert_array_equal(value, expected[name])


def test_several_files_and_half_precision(tmp_path: Path, target: Target) -> None:
    folder, made = written(tmp_path / "a", target)
    tensors = {k: v.astype(mx.bfloat16) for k, v in tree_flatten(made.parameters())}
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in ((1, names[:20]), (2, names[20:])):
        path = folder / f"model-0000{number}-of-00002.safetensors"
        mx.save_safetensors(str(path), {name: tensors[name] for name in part})
    loaded = load_assistant(folder, target)
    assert all(value.dtype == np.float32 for value in flat(loaded).values())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"00002-of-00002\.safetensors: missing"):
        load_assistant(folder, target)


def test_a_quantized_checkpoint_stays_as_it_is(tmp_path: Path, target: Target) -> None:
    made = tiny_assistant(target, ordered=True, text={"vocab_size": VOCAB})
    nn.quantize(made, group_size=32, bits=4, class_predicate=lambda path, m: "centroids" not in path
                and hasattr(m, "to_quantized"))  # fmt: skip
    table = {"quantization": {"group_size": 32, "bits": 4}}
    folder = write_assistant(tmp_path / "a", made, config_of(ordered=True) | table)
    loaded = load_assistant(folder, target)
    kinds = {type(m) for _, m in loaded.named_modules()}
    assert {nn.QuantizedLinear, nn.QuantizedEmbedding} <= kinds
    assert type(loaded.masked_embedding.centroids) is nn.Linear
    hidden = mx.random.normal((2, 1, 32), key=mx.random.key(1))
    (logits, ids), (wanted, same) = loaded.logits(hidden), made.logits(hidden)
    assert mx.array_equal(ids, same).item()
    np.testing.assert_allclose(np.array(logits), np.array(wanted), atol=1e-5)
    (folder / "config.json").write_text(json.dumps(config_of(ordered=True)))
    with pytest.raises(LoadError, match=r"config\.json has no quantization"):
        load_assistant(folder, target)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("pre_projection.weight"), "missing tensors: pre_projection.weight"),
        (lambda t: t.pop(ORDER), f"missing tensors: {ORDER}; .*use_ordered_embeddings true"),
        (lambda t: t.update({"model.norm.weight": mx.ones((16,))}), r"has shape \(16,\), expected"),
        (lambda t: t.update({"mtp.fc.weight": mx.ones((4, 4))}), "no part of such an assistant"),
        (lambda t: t.update({ORDER: mx.zeros((VOCAB,), mx.int64)}), "does not name each of"),
    ],
    ids=["missing", "unordered", "shape", "unknown", "order"],
)
def test_wrong_tensors(tmp_path: Path, target: Target, change: Any, said: str) -> None:
    folder, _ = written(tmp_path / "a", target, ordered=True)
    tensors = mx.load(str(folder / "model.safetensors"))
    change(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    with pytest.raises(LoadError, match=said) as caught:
        load_assistant(folder, target)
    assert str(folder) in str(caught.value)


def test_damaged_files(tmp_path: Path, target: Target) -> None:
    folder, _ = written(tmp_path / "a", target)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(LoadError, match="truncated"):
        load_assistant(folder, target)
    weights.unlink()
    with pytest.raises(LoadError, match="no weights"):
        load_assistant(folder, target)
    (folder / "config.json").write_text("{")
    with pytest.raises(LoadError, match="not JSON"):
        load_assistant(folder, target)


def test_the_config_is_judged_before_the_weights(tmp_path: Path, target: Target) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(backbone_hidden_size=48)))
    with pytest.raises(LoadError, match="made for another target"):  # there are no weights
        load_assistant(folder, target)


# -- the whole way --------------------------------------------------------------------


def settings_for(tmp_path: Path, **more: Any) -> Settings:
    return Settings(cache_dir=tmp_path, enable_mtp_b1=True, mtp_exactness="off", **more)


@pytest.mark.parametrize("spelling", ["global", "per_layer"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_load_and_generate(
    tmp_path: Path, target: Target, spelling: str, temperature: float
) -> None:
    where = write_tiny_gemma4(tmp_path / "target", spelling=spelling)
    folder, _ = written(tmp_path / "assistant", target, ordered=True)
    engine = build_engine(where, folder, settings_for(tmp_path))
    assert engine.drafter is not None
    params: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "seed": 3}
    params["ignore_eos"] = True
    twin = one(engine, PROMPT, 4, **params)
    assert twin.speculation.ran
    assert (twin.speculation.kind, twin.decision.kind) == ("assistant", "assistant")
    classic = one(Engine(engine.model, None, engine.settings), PROMPT, **params)
    assert twin.token_ids == classic.token_ids
    assert engine.drafter.fingerprint.startswith("dense pending ")


@pytest.mark.parametrize("weights", ["stored", "dense"])
def test_a_quantized_target(tmp_path: Path, target: Target, weights: Any) -> None:
    """As MLX conversions name it; its embedding is the assistant's too."""
    where = write_tiny_gemma4(tmp_path / "target", bits=4)
    folder, _ = written(tmp_path / "assistant", target)
    engine = build_engine(where, folder, settings_for(tmp_path, weights=weights))
    embedding = engine.model.target.body.embed_tokens
    assert isinstance(embedding, nn.QuantizedEmbedding) == (weights == "stored")
    twin = one(engine, PROMPT, 4, max_tokens=20, ignore_eos=True)
    assert twin.speculation.proposed > 0
    classic = one(Engine(engine.model, None, engine.settings), PROMPT, max_tokens=20,
                  ignore_eos=True)  # fmt: skip
    assert twin.token_ids == classic.token_ids


def test_a_target_that_cannot_rewind_runs_classic(tmp_path: Path, target: Target) -> None:
    folder, _ = written(tmp_path / "assistant", target)
    model = tiny.loaded(tiny.gemma4_model(vocab=VOCAB))
    model.target.layout = CacheLayout(None, "a test says that it cannot be rewound")
    engine = Engine(model, make_drafter(folder, model, settings_for(tmp_path)), Settings())
    answer = one(engine, PROMPT, 4, max_tokens=10)
    assert not answer.speculation.ran
    assert "a test says that it cannot" in answer.speculation.reason


def test_the_public_door(tmp_path: Path, target: Target) -> None:
    where = write_tiny_gemma4(tmp_path / "target")
    folder, _ = written(tmp_path / "assistant", target)
    with mlxcel.load(where, drafter=folder, config=settings_for(tmp_path)) as llm:
        assert llm.facts["drafter"] == "assistant"
        assert "float32 is the fast form" in llm.facts["drafter_weights"]
        answer = llm.generate("hello hello", max_tokens=12, speculation="on", width=4)
        assert answer.speculation.ran
        plain = llm.generate("hello hello", max_tokens=12, speculation="off")
    assert answer.token_ids == plain.token_ids


def test_the_fingerprint_follows_form_position_and_weights(tmp_path: Path, target: Target) -> None:
    model = load_checkpoint(write_tiny_gemma4(tmp_path / "target"), cache_dir=tmp_path)
    folder, _ = written(tmp_path / "assistant", target)

    def fingerprint(**more: Any) -> str:
        drafter = make_drafter(folder, model, settings_for(tmp_path, **more))
        assert drafter is not None
        return drafter.fingerprint

    found = {fingerprint(), fingerprint(assistant_position="last"), fingerprint(drafter_bits="8")}
    written(tmp_path / "assistant", target, **{"model.norm.weight": mx.zeros((32,))})
    assert len({*found, fingerprint()}) == 4


def test_a_hub_id(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_checkpoint(write_tiny_gemma4(tmp_path / "target"), cache_dir=tmp_path)
    folder, _ = written(tmp_path / "assistant", target)
    asked: list[str] = []
    monkeypatch.setattr(checkpoint, "_from_hub", lambda name: asked.append(name) or folder)
    drafter = make_drafter("google/gemma-4-31B-it-assistant", model, settings_for(tmp_path))
    assert drafter is not None
    assert drafter.kind == "assistant"
    assert asked == ["google/gemma-4-31B-it-assistant"]


def test_drafters_that_are_no_models(tmp_path: Path, target: Target) -> None:
    folder, _ = written(tmp_path / "assistant", target)
    with pytest.raises(LoadError, match=r"is a drafter \(Gemma 4 assistant\), no model by itself"):
        build_engine(folder, None, settings_for(tmp_path))


def test_settings() -> None:
    assert Settings.from_env({"MLXCEL_ASSISTANT_POSITION": "last"}).assistant_position == "last"
    assert Settings.from_env({"MLXCEL_DRAFTER_BITS": "8"}).drafter_bits == "8"
    with pytest.raises(ConfigError, match="MLXCEL_DRAFTER_BITS"):
        Settings.from_env({"MLXCEL_DRAFTER_BITS": "7"})
