"""Heads of published Qwen checkpoints: the equations in float64, names, forms and norms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_next

from mlxcel.decide.pairings import KNOWN_PAIRINGS
from mlxcel.errors import LoadError
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.models.drafters.published_mtp import (
    centred_norms,
    check_config,
    head_name,
    parts_of,
    quantized_as,
)
from mlxcel.models.target import Target
from tests.models.test_mtp import PAIRS, chained, rms, rope
from tests.support import tiny
from tests.support.qwen import config_of, tiny_head, tiny_qwen

STEPS = 4
KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Reference:
    """One pair after the other in float64; ``wrong`` names a mistake."""

    def __init__(self, head: MTPHead, wrong: str = "") -> None:
        self.w = {k: np.array(v, np.float64) for k, v in tree_flatten(head.parameters())}
        self.args = head._target.core.args
        self.embedding = np.array(head._target.body.embed_tokens.weight, np.float64)
        self.wrong = wrong
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self.w[f"{name}.weight"]
        if self.wrong == f"{name} plus one":
            weight = weight + 1
        return rms(x, weight, self.args.rms_norm_eps)

    def step(self, hidden: np.ndarray, token: int, position: int) -> np.ndarray:
        e = self.norm(self.embedding[token], "pre_fc_norm_embedding")
        h = self.norm(hidden, "pre_fc_norm_hidden")
        pair = [h, e] if self.wrong == "order" else [e, h]
        x = self.w["fc.weight"] @ np.concatenate(pair)
        x = x + self.attention(self.norm(x, "layers.0.input_layernorm"), position)
        n = self.norm(x, "layers.0.post_attention_layernorm")
        experts = "layers.0.mlp.gate.weight" in self.w
        x = x + (self.experts(n) if experts else self.dense(n, "layers.0.mlp."))
        return x if self.wrong == "no last norm" else self.norm(x, "norm")

    def attention(self, x: np.ndarray, position: int) -> np.ndarray:
        a = self.args
        heads, groups, size = a.num_attention_heads, a.num_key_value_heads, a.head_dim
        turned = int(size * a.partial_rotary_factor)
        start = "layers.0.self_attn."
        both = (self.w[f"{start}q_proj.weight"] @ x).reshape(heads, 2 * size)
        q, gate = both[:, :size], both[:, size:]
        k = (self.w[f"{start}k_proj.weight"] @ x).reshape(groups, size)
        v = (self.w[f"{start}v_proj.weight"] @ x).reshape(groups, size)
        q, k = self.norm(q, f"{start}q_norm"), self.norm(k, f"{start}k_norm")

        def rotated(y: np.ndarray) -> np.ndarray:
            at = np.array([position], np.float64)
            left = rope(y[None, :, :turned], at, a.rope_theta)[0]
            return np.concatenate([left, y[:, turned:]], axis=1)

        self.keys.append(rotated(k))
        self.values.append(v)
        q = rotated(q)
        out = []
        for i in range(heads):
            group = i // (heads // groups)
            scores = np.array([q[i] @ past[group] for past in self.keys]) / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out.append(sum(p * b[group] for p, b in zip(weights, self.values, strict=True)))
        mixed = np.concatenate(out)
        if self.wrong != "no gate of the output":
            mixed = mixed * sigmoid(gate.reshape(-1))
        return self.w[f"{start}o_proj.weight"] @ mixed

    def dense(self, x: np.ndarray, start: str, expert: int | None = None) -> np.ndarray:
        gate, up, down = (self.w[f"{start}{part}_proj.weight"] for part in ("gate", "up", "down"))
        if expert is not None:
            gate, up, down = gate[expert], up[expert], down[expert]
        g = gate @ x
        return down @ (g * sigmoid(g) * (up @ x))

    def experts(self, x: np.ndarray) -> np.ndarray:
        start, a = "layers.0.mlp.", self.args
        scores = self.w[f"{start}gate.weight"] @ x
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        best = np.argsort(-weights)[: a.num_experts_per_tok]
        total = weights[best].sum() if a.norm_topk_prob else 1.0
        out = sum(weights[e] / total * self.dense(x, f"{start}switch_mlp.", e) for e in best)
        shared = self.dense(x, f"{start}shared_expert.")
        return out + sigmoid(self.w[f"{start}shared_expert_gate.weight"] @ x) * shared


def reference_logits(
    head: MTPHead, hidden: mx.array, tokens: np.ndarray, wrong: str = ""
) -> np.ndarray:
    plain = Reference(head, wrong)
    true = np.array(hidden[0], np.float64)
    output = head._target.core.get("lm_head")
    rows = plain.embedding if output is None else np.array(output.weight, np.float64)
    for i in range(PAIRS):
        state = plain.step(true[i], int(tokens[i]), i)
    logits = [rows @ state]
    for k in range(STEPS - 1):
        late = 1 if wrong == "position" else 0
        state = plain.step(state, int(tokens[PAIRS + k]), PAIRS + k + late)
        logits.append(rows @ state)
    return np.array(logits)


def made(kind: str) -> tuple[MTPHead, mx.array, np.ndarray]:
    head = tiny_head(Target(tiny_qwen(kind), {}))
    hidden = mx.random.normal((1, PAIRS, 32), key=mx.random.key(3))
    tokens = (np.arange(PAIRS + STEPS) * 7 + 3).astype(np.uint32) % tiny.VOCAB
    return head, hidden, tokens


@pytest.mark.parametrize("kind", KINDS)
def test_four_chained_steps(kind: str) -> None:
    head, hidden, tokens = made(kind)
    found, wanted = chained(head, hidden, tokens), reference_logits(head, hidden, tokens)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert np.array_equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize(
    "wrong",
    ["order", "position", "no gate of the output", "no last norm", "norm plus one",
     "pre_fc_norm_embedding plus one", "pre_fc_norm_hidden plus one",
     "layers.0.input_layernorm plus one", "layers.0.self_attn.q_norm plus one"],
)  # fmt: skip
def test_a_mistake_turns_it_red(wrong: str) -> None:
    head, hidden, tokens = made("qwen3_5")
    found = chained(head, hidden, tokens)
    assert np.abs(found - reference_logits(head, hidden, tokens, wrong)).max() > 1e-3


# -- names and forms -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("mtp.fc.weight", "fc.weight"),
        ("language_model.mtp.norm.weight", "norm.weight"),
        ("model.mtp.norm.weight", "norm.weight"),
        ("model.layers.0.mlp.gate_proj.weight", None),
        ("model.language_model.norm.weight", None),
        ("mtp.embed_tokens.weight", None),
        ("fc.weight", None),
    ],
)
def test_names(name: str, inner: str | None) -> None:
    assert head_name(name) == inner


def test_names_without_a_prefix() -> None:
    assert head_name("fc.weight", bare=True) == "fc.weight"
    assert head_name("lm_head.weight", bare=True) is None


def test_experts_in_one_tensor() -> None:
    parts = parts_of(
        {"mtp.layers.0.mlp.experts.gate_up_proj": (3, 8, 5),
         "mtp.layers.0.mlp.experts.down_proj": (3, 5, 4)}
    )  # fmt: skip
    start = "layers.0.mlp.switch_mlp."
    assert {name: part.shape for name, part in parts.items()} == {
        f"{start}gate_proj.weight": (3, 4, 5),
        f"{start}up_proj.weight": (3, 4, 5),
        f"{start}down_proj.weight": (3, 5, 4),
    }
    both = mx.arange(3 * 8 * 5).reshape(3, 8, 5)
    arrays = {"mtp.layers.0.mlp.experts.gate_up_proj": both}
    assert mx.array_equal(parts[f"{start}gate_proj.weight"].make(arrays), both[:, :4])
    assert mx.array_equal(parts[f"{start}up_proj.weight"].make(arrays), both[:, 4:])


def test_experts_by_themselves_are_stacked_by_number() -> None:
    names = [f"mtp.layers.0.mlp.experts.{at}.up_proj.weight" for at in range(12)]
    parts = parts_of(dict.fromkeys(reversed(names), (4, 5)))
    (part,) = parts.values()
    assert part.shape == (12, 4, 5)
    arrays = {name: mx.full((4, 5), at) for at, name in enumerate(names)}
    assert part.make(arrays)[:, 0, 0].tolist() == list(range(12))


def test_a_quantization_that_does_not_fit() -> None:
    head = tiny_head(Target(tiny_qwen("qwen3_5"), {}))
    parts = parts_of({"mtp.fc.weight": (32, 7), "mtp.fc.scales": (32, 2)})
    with pytest.raises(LoadError, match="does not fit rows of 64"):
        quantized_as(head, parts, "affine", "here")


def test_bits_and_groups_come_from_the_shapes() -> None:
    head = tiny_head(Target(tiny_qwen("qwen3_5"), {}))
    other = tiny_head(Target(tiny_qwen("qwen3_5"), {}))
    nn.quantize(other, group_size=32, bits=8)
    shapes = {f"mtp.{k}": tuple(v.shape) for k, v in tree_flatten(other.parameters())}
    quantized_as(head, parts_of(shapes), "affine", "here")
    assert (head.fc.bits, head.fc.group_size, head.fc.mode) == (8, 32, "affine")


# -- norms ---------------------------------------------------------------------------

MULTIPLIERS = {
    "layers.0.input_layernorm.weight": 1.1,
    "layers.0.post_attention_layernorm.weight": 0.9,
    "layers.0.self_attn.q_norm.weight": 1.6,
    "layers.0.self_attn.k_norm.weight": 1.4,
    "norm.weight": 2.2,
    "pre_fc_norm_embedding.weight": 0.27,
    "pre_fc_norm_hidden.weight": 0.49,
}
HEAD_ONLY = {"norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"}


def norms(*stored_less_one: str) -> dict[str, mx.array]:
    return {
        name: mx.full((8,), value - (name in stored_less_one))
        for name, value in MULTIPLIERS.items()
    }


def test_original_checkpoints_say_so_whatever_the_values() -> None:
    assert centred_norms(norms(), raw=True) == set(MULTIPLIERS)


@pytest.mark.parametrize("raw", [None, False])
def test_multipliers_stay(raw: bool | None) -> None:
    """Those before ``fc`` are as small as published ones, and still multipliers."""
    assert centred_norms(norms(), raw=raw) == set()


@pytest.mark.parametrize("raw", [None, False])
def test_a_head_copied_as_it_was_is_known_by_its_values(raw: bool | None) -> None:
    assert centred_norms(norms(*MULTIPLIERS), raw=raw) == set(MULTIPLIERS)


def test_a_conversion_that_has_shifted_the_names_it_knows() -> None:
    """As mlx-lm's does: the norms of layers, by their last names, and no others."""
    assert centred_norms(norms(*HEAD_ONLY), raw=False) == HEAD_ONLY


# -- the target ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_of_the_target_itself_fits(kind: str) -> None:
    check_config(config_of(kind, tiny.VOCAB), Target(tiny_qwen(kind), {}), "config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 64), ("vocab_size", 65), ("num_key_value_heads", 4), ("head_dim", 8)],
)
def test_another_target_is_refused(field: str, value: int) -> None:
    config = config_of("qwen3_5", tiny.VOCAB)
    config["text_config"][field] = value
    with pytest.raises(LoadError, match=f"{field} is {value}, but the target's is"):
        check_config(config, Target(tiny_qwen("qwen3_5"), {}), "config.json")


def test_a_head_of_two_layers_is_refused() -> None:
    config = config_of("qwen3_5", tiny.VOCAB)
    config["text_config"]["mtp_num_hidden_layers"] = 2
    with pytest.raises(LoadError, match="mtp_num_hidden_layers is 2"):
        check_config(config, Target(tiny_qwen("qwen3_5"), {}), "config.json")


# -- the published checkpoints ---------------------------------------------------------

LAYOUTS = sorted((Path(__file__).parents[1] / "layouts" / "qwen").glob("*.json"))


def shapes_of(layout: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(shape) for name, shape in layout["tensors"].items()}
    experts = layout.get("experts", {"count": 0})
    for at in range(experts["count"]):
        for part in ("gate_proj", "up_proj", "down_proj"):
            name = f"mtp.layers.0.mlp.experts.{at}.{part}.weight"
            shapes[name] = tuple(experts[part])
    return shapes


def bare_target(config: dict[str, Any]) -> Any:
    """A target of real size that is never computed: one period of its layers."""
    text = dict(config.get("text_config") or config) | {"num_hidden_layers": 4}
    if config["model_type"] == "qwen3_next":
        core: Any = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(text))
    else:
        core = qwen3_5.TextModel(qwen3_5.TextModelArgs.from_dict(text))
    return SimpleNamespace(core=core, body=core.model, split=True, config=config)


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_published_layouts_fit_their_targets(path: Path) -> None:
    """Every tensor of the head by name and shape; sizes are those of `mlxcel pairings`."""
    layout = json.loads(path.read_text())
    shapes, target = shapes_of(layout), bare_target(layout["config"])
    check_config(layout["config"], target, path.name)
    parts = parts_of(shapes)
    head = MTPHead(target)
    quantized_as(head, parts, "affine", path.name)
    wanted = {name: tuple(value.shape) for name, value in tree_flatten(head.parameters())}
    assert {name: part.shape for name, part in parts.items()} == wanted
    known = next(each for each in KNOWN_PAIRINGS if each.name == path.stem)
    assert sum(map(math.prod, shapes.values())) == known.drafter_parameters
    assert known.model_types == (layout["config"]["model_type"], "qwen3_5_mtp")
