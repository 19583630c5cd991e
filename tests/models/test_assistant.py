"""A Gemma 4 assistant against a plain float64 reference, and its checks against a target."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text

from mlxcel.decide.pairings import KNOWN_PAIRINGS
from mlxcel.errors import LoadError
from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant, Source, build_assistant
from mlxcel.models.drafters.gemma4_assistant_config import (
    check_pair,
    read_assistant,
    source_layers,
)
from mlxcel.models.gemma4_config import complete_config
from mlxcel.models.lean import lean_modules
from mlxcel.models.target import Target
from mlxcel.runtime.assistant_files import match_tensors
from tests.support import tiny
from tests.support.assistants import (
    FULL,
    KINDS,
    SLIDING,
    assistant_config,
    plain_sources,
    tiny_assistant,
)

STEPS = 4
PROMPT = [(7 * at + 3) % tiny.VOCAB for at in range(45)]  # longer than the window
LAYOUTS = sorted((Path(__file__).parents[1] / "layouts").glob("*.json"))
Array = np.ndarray


def rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rotate(x: Array, position: int, theta: float, part: float) -> Array:
    """Half-split rotation of the first ``part`` of the pairs, with frequencies over all dims."""
    dims = x.shape[-1]
    half, turned = dims // 2, int(part * dims) // 2
    frequency = np.where(np.arange(half) < turned, theta ** (-2 * np.arange(half) / dims), 0.0)
    cos, sin = np.cos(position * frequency), np.sin(position * frequency)
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


class Reference:
    """The equations, one row and one step at a time."""

    def __init__(self, assistant: Gemma4Assistant, target: Target) -> None:
        self.w = {k: np.array(v, np.float64) for k, v in tree_flatten(assistant.parameters())}
        self.embedding = np.array(target.body.embed_tokens.weight, np.float64)

    def layer(self, at: int, x: Array, keys: Array, values: Array, position: int) -> Array:
        def w(name: str) -> Array:
            return self.w[f"model.layers.{at}.{name}"]

        theta, part = (1e6, 0.25) if KINDS[at] == FULL else (1e4, 1.0)
        n = rms(x, w("input_layernorm.weight"))
        queries = (w("self_attn.q_proj.weight") @ n).reshape(4, -1)
        queries = rotate(rms(queries, w("self_attn.q_norm.weight")), position, theta, part)
        out = []
        for head, query in enumerate(queries):
            scores = keys[head // 2] @ query
            weights = np.exp(scores - scores.max())
            out.append(weights @ values[head // 2] / weights.sum())
        attended = w("self_attn.o_proj.weight") @ np.concatenate(out)
        x = x + rms(attended, w("post_attention_layernorm.weight"))
        n = rms(x, w("pre_feedforward_layernorm.weight"))
        inner = gelu(w("mlp.gate_proj.weight") @ n) * (w("mlp.up_proj.weight") @ n)
        inner = w("mlp.down_proj.weight") @ inner
        x = x + rms(inner, w("post_feedforward_layernorm.weight"))
        return x * w("layer_scalar")

    def step(
        self, token: int, state: Array, sources: dict[str, tuple[Array, Array]], position: int
    ) -> tuple[Array, Array]:
        """Logits, and the next state."""
        pair = np.concatenate([self.embedding[token] * np.sqrt(len(state)), state])
        x = self.w["pre_projection.weight"] @ pair
        for at, kind in enumerate(KINDS):
            x = self.layer(at, x, *sources[kind], position)
        y = rms(x, self.w["model.norm.weight"])
        logits = self.w["model.embed_tokens.weight"] @ y
        if "masked_embedding.centroids.weight" in self.w:
            scores = self.w["masked_embedding.centroids.weight"] @ y
            order = self.w["masked_embedding.token_ordering"].astype(int).reshape(8, -1)
            open_ = order[np.argsort(scores)[-3:]].ravel()
            hidden = np.full_like(logits, -np.inf)
            hidden[open_] = logits[open_]
            logits = hidden
        return logits, self.w["post_projection.weight"] @ y


Case = tuple[Target, Gemma4Assistant]


def make_case(ordered: bool = False, shared: int = 0) -> Case:
    target = Target(tiny.gemma4_model(shared=shared), {})
    return target, tiny_assistant(target, ordered=ordered)


def ours(case: Case, length: int, *, late: int = 0, **view: Any) -> Array:
    """Logits of the chained steps over the whole vocabulary; tokens are our own choices."""
    target, assistant = case
    sources, state = plain_sources(target, assistant, PROMPT[:length], **view)
    token, found = mx.array([[PROMPT[length]]], mx.uint32), []
    for _ in range(STEPS):
        hidden = assistant.step(token, state, sources, length + late)
        logits, ids = assistant.logits(hidden)
        whole = np.full(tiny.VOCAB, -np.inf)
        whole[slice(None) if ids is None else np.array(ids[0, 0])] = np.array(logits[0, 0])
        found.append(whole)
        token = mx.array([[int(np.argmax(whole))]], mx.uint32)
        state = assistant.project(hidden)
    return np.array(found)


def reference(case: Case, length: int) -> Array:
    target, assistant = case
    sources, state = plain_sources(target, assistant, PROMPT[:length])
    held = {
        kind: (np.array(each.keys[0], np.float64), np.array(each.values[0], np.float64))
        for kind, each in sources.items()
    }
    plain = Reference(assistant, target)
    now, token, found = np.array(state[0, 0], np.float64), PROMPT[length], []
    for _ in range(STEPS):
        logits, now = plain.step(token, now, held, length)
        found.append(logits)
        token = int(np.argmax(logits))
    return np.array(found)


def gap(a: Array, b: Array) -> float:
    """Largest difference, infinite where another set of ids is scored."""
    scored = np.isfinite(a)
    if not np.array_equal(scored, np.isfinite(b)):
        return np.inf
    return float(np.max(np.abs(a[scored] - b[scored])))


@pytest.mark.parametrize("length", [9, tiny.WINDOW, 44])
@pytest.mark.parametrize("ordered", [False, True], ids=["dense", "ordered"])
@pytest.mark.parametrize("shared", [0, 3], ids=["own", "shared"])
def test_four_chained_steps(shared: int, ordered: bool, length: int) -> None:
    case = make_case(ordered, shared)
    assert gap(ours(case, length), reference(case, length)) < 1e-3


def _swap(case: Case) -> None:
    weight = case[1].pre_projection.weight
    half = weight.shape[1] // 2
    case[1].pre_projection.weight = mx.concatenate([weight[:, half:], weight[:, :half]], axis=1)


def _unscaled(case: Case) -> None:
    case[0].body.embed_scale = 1.0


def _shifted_norms(case: Case) -> None:
    for name, module in case[1].named_modules():
        if name.endswith("norm"):
            module.weight = module.weight + 1


def _no_scalar(case: Case) -> None:
    for layer in case[1].model.layers:
        layer.layer_scalar = mx.ones((1,))


def _no_last_norm(case: Case) -> None:
    case[1].model.norm = lambda x: x


def _other_rotation(case: Case) -> None:
    case[1].model.layers[3].self_attn.rope = case[1].model.layers[0].self_attn.rope


MISTAKES: dict[str, Callable[[Case], None]] = {
    "no embedding scale": _unscaled,
    "hidden state first": _swap,
    "norms plus one": _shifted_norms,
    "no layer scalar": _no_scalar,
    "no last norm": _no_last_norm,
    "rotation of the other kind": _other_rotation,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_would_be_noticed(mistake: str) -> None:
    case = make_case()
    right = reference(case, 44)
    sources = plain_sources(*case, PROMPT[:44])  # before the target is touched
    MISTAKES[mistake](case)
    wrong = _with_sources(case, sources)
    assert gap(wrong, right) > 1e-2


def _with_sources(case: Case, given: tuple[dict[str, Source], mx.array]) -> Array:
    sources, state = given
    assistant, token, found = case[1], mx.array([[PROMPT[44]]], mx.uint32), []
    for _ in range(STEPS):
        hidden = assistant.step(token, state, sources, 44)
        logits, _ = assistant.logits(hidden)
        found.append(np.array(logits[0, 0]))
        token = mx.argmax(logits, axis=-1)
        state = assistant.project(hidden)
    return np.array(found)


@pytest.mark.parametrize("change", [{"late": -1}, {"window": tiny.WINDOW - 1}], ids=str)
def test_another_position_or_window_would_be_noticed(change: dict[str, int]) -> None:
    case = make_case()
    assert gap(ours(case, 44, **change), reference(case, 44)) > 1e-3


def test_hidden_state_before_the_last_norm_would_be_noticed() -> None:
    case = make_case()
    right = reference(case, 44)
    case[0].body.norm = lambda x: x
    assert gap(_with_sources(case, plain_sources(*case, PROMPT[:44])), right) > 1e-2


def test_lean_modules_change_nothing() -> None:
    case, lean = make_case(), make_case()
    assert lean_modules(lean[1]) > 10
    assert gap(ours(lean, 44), ours(case, 44)) < 1e-4


# -- what fits, and what does not -----------------------------------------------------


def target_of(**text: Any) -> Target:
    target = Target(tiny.gemma4_model(), {})
    target.core.args = dataclasses.replace(target.core.args, **text)
    return target


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"backbone_hidden_size": 48}, "backbone_hidden_size is 48, but the target's hidden_size"),
        ({"text": {"vocab_size": 63}}, "vocab_size is 63, but the target's"),
        ({"text": {"head_dim": 8}}, "head_dim is 8"),
        ({"text": {"global_head_dim": 16}}, "global_head_dim is 16"),
        ({"window": 16}, "sliding_window is 16, but the target's sliding_window is 32"),
        ({"text": {"num_attention_heads": 3}}, "3 is not a multiple of the 2 key heads"),
        (
            {"text": {"rope_parameters": {SLIDING: {"rope_theta": 500.0}}}},
            "rope_parameters of sliding_attention is",
        ),
    ],
)
def test_an_assistant_of_another_target(config: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match="made for another target") as caught:
        build_assistant(assistant_config(**config), target_of(), "folder/config.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("folder/config.json: ")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gemma4"}, "must be gemma4_assistant or gemma4_unified_assistant"),
        ({"text_config": None}, "text_config is missing"),
        ({"backbone_hidden_size": None}, "backbone_hidden_size must be a positive whole number"),
        ({"text": {"num_kv_shared_layers": 2}}, "num_kv_shared_layers must be 4"),
        ({"text": {"hidden_size_per_layer_input": 8}}, "hidden_size_per_layer_input must be 0"),
        ({"text": {"enable_moe_block": True}}, "enable_moe_block must be False"),
        ({"text": {"use_double_wide_mlp": True}}, "use_double_wide_mlp must be False"),
        ({"text": {"layer_types": [SLIDING]}}, "layer_types must name"),
        ({"tie_word_embeddings": False}, "only tied heads are known"),
        ({"ordered": True, "num_centroids": 7}, "not a multiple of num_centroids 7"),
        ({"ordered": True, "centroid_intermediate_top_k": 9}, "is more than num_centroids 8"),
    ],
)
def test_configs_that_no_assistant_has(config: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        read_assistant(assistant_config(**config), "config.json")


def test_another_kind_of_target() -> None:
    with pytest.raises(LoadError, match=r"drafts for Gemma 4 targets, not for 'llama'"):
        build_assistant(assistant_config(), Target(tiny.llama_model(), {}), "config.json")


def test_a_target_without_a_layer_of_the_kind() -> None:
    with pytest.raises(LoadError, match="the target has none with keys of its own"):
        build_assistant(assistant_config(), target_of(layer_types=[FULL] * 6), "config.json")


def test_published_configs_may_have_no_shared_layers() -> None:
    read = read_assistant(assistant_config(text={"num_kv_shared_layers": 0}), "config.json")
    assert read.args.num_kv_shared_layers == len(KINDS)


@pytest.mark.parametrize(("shared", "expected"), [(0, (4, 5)), (3, (1, 2))])
def test_which_layers_are_read(shared: int, expected: tuple[int, int]) -> None:
    args = Target(tiny.gemma4_model(shared=shared), {}).core.args
    assert source_layers(args) == dict(zip((SLIDING, FULL), expected, strict=True))


# -- published layouts ----------------------------------------------------------------


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_published_layouts(path: Path) -> None:
    """Names, shapes and source layers of the published pairings; nothing is computed."""
    layout = json.loads(path.read_text())
    config, shapes = layout["assistant"], {k: tuple(v) for k, v in layout["tensors"].items()}
    told = complete_config(layout["target"], "target")
    args = gemma4_text.ModelArgs.from_dict(told["text_config"])
    assert source_layers(args) == layout["reads"]
    read = read_assistant(config, str(path))
    check_pair(read, args, str(path))
    target = Target.__new__(Target)  # of that size it cannot be made here; its sizes are enough
    target.core = type("Core", (), {"args": args})()
    names = match_tensors(Gemma4Assistant(read, target), config, shapes, str(path))
    assert set(names) == shapes.keys()


def test_every_layout_is_listed_with_its_size() -> None:
    listed = {each.name: each.drafter_parameters for each in KNOWN_PAIRINGS}
    for path in LAYOUTS:
        tensors = json.loads(path.read_text())["tensors"]
        sizes = [int(np.prod(v)) for k, v in tensors.items() if "token_ordering" not in k]
        assert listed[path.stem] == sum(sizes)
    assert len(LAYOUTS) == 5
