"""The MTP head against a plain float64 reference, and its files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache

from mlxcel.errors import LoadError
from mlxcel.models.drafters.mtp import MTPHead, head_config, load_mtp
from mlxcel.models.lean import lean_modules
from mlxcel.models.target import Target
from tests.support import tiny

PAIRS, STEPS = 6, 4
Tree = dict[str, np.ndarray]


def make_head(target: Target, seed: int = 5, draft_ids: mx.array | None = None) -> MTPHead:
    """A head whose weights are all random, norms included."""
    head = MTPHead(target, draft_ids)
    flat = tree_flatten(head.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))
    random = [
        (name, mx.random.normal(v.shape, key=k) * (0.3 if v.ndim == 2 else 0.2) + (v.ndim == 1))
        for (name, v), k in zip(flat, keys, strict=True)
    ]
    head.update(tree_unflatten(random))
    mx.eval(head.parameters())
    return head


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


class Reference:
    """The head of a llama target in float64, token by token; ``wrong`` names a mistake."""

    def __init__(self, head: MTPHead, wrong: str = "") -> None:
        self.w = {k: np.array(v, np.float64) for k, v in tree_flatten(head.parameters())}
        self.args = head._target.core.args
        self.embedding = np.array(head._target.body.embed_tokens.weight, np.float64)
        self.wrong = wrong
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def step(self, hidden: np.ndarray, token: int, position: int) -> np.ndarray:
        w, a = self.w, self.args
        eps, heads, kv = a.rms_norm_eps, a.num_attention_heads, a.num_key_value_heads
        e, h = self.embedding[token], hidden
        if self.wrong != "no norm of the embedding":
            e = rms(e, w["pre_fc_norm_embedding.weight"], eps)
        if self.wrong != "no norm of the hidden state":
            h = rms(h, w["pre_fc_norm_hidden.weight"], eps)
        pair = [h, e] if self.wrong == "order" else [e, h]
        x = w["fc.weight"] @ np.concatenate(pair)
        n = rms(x, w["layers.0.input_layernorm.weight"], eps)
        at = np.array([position], np.float64)
        q, k, v = (w[f"layers.0.self_attn.{name}_proj.weight"] @ n for name in "qkv")
        self.keys.append(rope(k.reshape(1, kv, -1), at, a.rope_theta)[0])
        self.values.append(v.reshape(kv, -1))
        q = rope(q.reshape(1, heads, -1), at, a.rope_theta)[0]
        out = []
        for i in range(heads):
            group = i // (heads // kv)
            scores = np.array([q[i] @ past[group] for past in self.keys]) / np.sqrt(len(q[i]))
            weights = np.exp(scores - scores.max())
            out.append(
                sum(a * b[group] for a, b in zip(weights, self.values, strict=True)) / weights.sum()
            )
        x = x + w["layers.0.self_attn.o_proj.weight"] @ np.concatenate(out)
        n = rms(x, w["layers.0.post_attention_layernorm.weight"], eps)
        gate, up = (w[f"layers.0.mlp.{name}_proj.weight"] @ n for name in ("gate", "up"))
        x = x + w["layers.0.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        return x if self.wrong == "no last norm" else rms(x, w["norm.weight"], eps)


def chained(head: MTPHead, hidden: mx.array, tokens: np.ndarray) -> np.ndarray:
    """Logits of four chained steps after a few true pairs, through one cache."""
    cache, logits = KVCache(), []
    fed = mx.array(tokens[None, :PAIRS])
    state, mask = hidden, "causal"
    for k in range(STEPS):
        state = head.forward(head.fuse(state, fed), mask, cache)[:, -1:]
        logits.append(np.array(head.logits(state))[0, 0])
        fed, mask = mx.array(tokens[None, PAIRS + k : PAIRS + k + 1]), None
    return np.array(logits)


def reference_logits(
    head: MTPHead, hidden: mx.array, tokens: np.ndarray, wrong: str = ""
) -> np.ndarray:
    plain = Reference(head, wrong)
    true = np.array(hidden[0], np.float64)
    for i in range(PAIRS):
        state = plain.step(true[i], int(tokens[i]), i)
    logits = [plain.embedding @ state]
    for k in range(STEPS - 1):
        late = 1 if wrong == "position" else 0
        state = plain.step(state, int(tokens[PAIRS + k]), PAIRS + k + late)
        logits.append(plain.embedding @ state)
    return np.array(logits)


@pytest.fixture(scope="module")
def case() -> tuple[MTPHead, mx.array, np.ndarray]:
    target = Target(tiny.llama_model(), {})
    tokens = np.random.default_rng(1).integers(0, tiny.VOCAB, PAIRS + STEPS + 1).astype(np.uint32)
    hidden = target.hidden(mx.array(tokens[None, :PAIRS]), [None, None])
    return make_head(target), hidden, tokens[1:]


def test_parity_over_four_chained_steps(case: Any) -> None:
    head, hidden, tokens = case
    ours, plain = chained(head, hidden, tokens), reference_logits(head, hidden, tokens)
    np.testing.assert_allclose(ours, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        "order",
        "no norm of the embedding",
        "no norm of the hidden state",
        "no last norm",
        "position",
    ],
)
def test_parity_would_notice(case: Any, wrong: str) -> None:
    head, hidden, tokens = case
    plain = reference_logits(head, hidden, tokens, wrong)
    assert np.abs(chained(head, hidden, tokens) - plain).max() > 1e-2


def test_lean_modules_change_nothing(case: Any) -> None:
    head, hidden, tokens = case
    lean = make_head(head._target)
    assert lean_modules(lean) == 8
    np.testing.assert_allclose(
        chained(lean, hidden, tokens), chained(head, hidden, tokens), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("make", [tiny.llama_model, tiny.qwen2_model, tiny.qwen3_model])
def test_every_supported_kind_has_its_own_layer(make: Any) -> None:
    target = Target(make(), {})
    head = make_head(target)
    assert type(head.layers[0]) is type(target.body.layers[0])
    x = head.fuse(mx.ones((1, 3, 32)), mx.array([[1, 2, 3]]))
    assert head.logits(head.forward(x, "causal", None)).shape == (1, 3, tiny.VOCAB)


def test_a_draft_vocabulary_takes_rows_of_the_output_head() -> None:
    for make in (tiny.llama_model, tiny.qwen2_model):  # tied and not
        target = Target(make(), {})
        ids = mx.array([3, 9, 40], mx.uint32)
        whole, part = make_head(target), make_head(target, draft_ids=ids)
        hidden = mx.random.normal((1, 2, 32), key=mx.random.key(0))
        np.testing.assert_allclose(
            np.array(part.logits(hidden)),
            np.array(whole.logits(hidden))[..., [3, 9, 40]],
            atol=1e-5,
        )
        assert whole.draft_ids is None
        assert part.draft_ids is not None
        assert part.draft_ids.tolist() == [3, 9, 40]


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(LoadError, match=r"'gemma3_text'.*llama, qwen2, qwen3"):
        MTPHead(Target(tiny.gemma3_model(), {}))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Target, MTPHead]:
    target = Target(tiny.llama_model(), {})
    head = make_head(target, draft_ids=mx.array([1, 5, 7], mx.uint32))
    head.save(tmp_path, head_config(head, target={"name": "tiny"}, training={"steps": 3}))
    return tmp_path, target, head


def test_save_and_load(saved: tuple[Path, Target, MTPHead]) -> None:
    folder, target, head = saved
    again = load_mtp(folder, target)
    assert again.draft_ids is not None
    assert again.draft_ids.tolist() == [1, 5, 7]
    for (name, a), (other, b) in zip(
        tree_flatten(head.parameters()), tree_flatten(again.parameters()), strict=True
    ):
        assert name == other
        assert b.dtype == mx.float32
        np.testing.assert_array_equal(
            np.array(a.astype(mx.float16)), np.array(b.astype(mx.float16))
        )
    names = set(mx.load(str(folder / "model.safetensors")))
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.up_proj.weight"} <= names
    config = json.loads((folder / "config.json").read_text())
    assert (config["draft_vocab_size"], config["block_width"]) == (3, 4)
    assert not list(folder.glob("unfinished*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type must be 'mlxcel_mtp', got 'llama'"),
        ({"hidden_size": 48}, "hidden_size is 48, but the target's is 32"),
        ({"vocab_size": 65}, "vocab_size is 65"),
        ({"target_model_type": "qwen3"}, "target_model_type is 'qwen3'"),
        ({"num_attention_heads": 8}, "num_attention_heads is 8"),
        ({"draft_vocab_size": 0}, "draft_vocab_size must be 1 to 64"),
        ({"draft_vocab_size": 4}, r"draft_ids has shape \(3,\), expected \(4,\)"),
    ],
)
def test_wrong_configs(
    saved: tuple[Path, Target, MTPHead], change: dict[str, Any], message: str
) -> None:
    folder, target, _ = saved
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LoadError, match=message) as caught:
        load_mtp(folder, target)
    assert str(folder) in str(caught.value)


def test_wrong_files(saved: tuple[Path, Target, MTPHead]) -> None:
    folder, target, _ = saved
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    arrays = mx.load(str(path))
    for content, message in (
        (whole[:-1], "its header says"),
        (whole[:5], "not a complete safetensors file"),
        (b"\xff" * 64, "not a complete"),
        (whole[:8] + b"{" * (len(whole) - 8), "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(LoadError, match=message):
            load_mtp(folder, target)
    fewer = {k: v for k, v in arrays.items() if "fc" not in k}
    mx.save_safetensors(str(path), fewer)
    with pytest.raises(LoadError, match=r"missing tensors: .*mtp\.fc\.weight"):
        load_mtp(folder, target)
    outside = copy.copy(arrays) | {"draft_ids": mx.array([1, 2, 64], mx.uint32)}
    mx.save_safetensors(str(path), outside)
    with pytest.raises(LoadError, match="outside"):
        load_mtp(folder, target)
    path.unlink()
    with pytest.raises(LoadError, match="cannot be read"):
        load_mtp(folder, target)
