"""EAGLE heads: the equations in float64, configs in every spelling, the published layouts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from mlxcel.decide.pairings import KNOWN_PAIRINGS
from mlxcel.errors import LoadError
from mlxcel.models.drafters.eagle3 import usual_places
from mlxcel.models.drafters.eagle_config import check_pair, named_kind, read_eagle
from mlxcel.models.lean import lean_modules
from mlxcel.models.taps import Taps
from mlxcel.models.target import Target
from mlxcel.runtime.eagle_files import head_for
from tests.models.test_mtp import PAIRS, STEPS, chained
from tests.support import tiny
from tests.support.eagle import (
    IDS_KEY,
    KINDS,
    LAYERS,
    USUAL,
    PlainHead,
    PlainTarget,
    config_of,
    speculators_config,
    tiny_head,
)

TOKENS = (np.arange(PAIRS + STEPS) * 7 + 3).astype(np.uint32) % tiny.VOCAB


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.llama_model(layers=LAYERS)


def both(
    kind: str, model: Any, wrong: str = "", lean: bool = False, **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of one true pass and a chain of three, by MLX and by NumPy."""
    target = Target(model, {})
    head = tiny_head(kind, target, **more)
    plain = PlainHead(
        head, PlainTarget(model), wrong,
        before_residual=bool(more.get("norm_before_residual")),
    )  # fmt: skip
    if lean:
        lean_modules(head)
    text = np.concatenate([[5], TOKENS])  # the token after position i stands at i + 1
    hidden = target.hidden(mx.array(text[None, :PAIRS]), [None] * LAYERS)
    taps = target.tapped()
    target.tap(())
    found = chained(head, head.reduce(hidden if taps is None else taps), TOKENS)
    wanted = plain.chain(plain.features(text[:PAIRS]), TOKENS, STEPS)
    return found, np.array(wanted)


VARIANTS = [
    ("eagle", {}),
    ("eagle3", {}),
    ("eagle3", {"norm_before_residual": True}),
    ("eagle3", {"norm_before_fc": True}),
    ("eagle3", {"own_embedding": True}),
    ("eagle3", {IDS_KEY: [1, 3, 8]}),
]


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("kind", "more"), VARIANTS)
def test_one_and_four_chained_steps(
    model: Any, kind: str, more: dict[str, Any], lean: bool
) -> None:
    found, wanted = both(kind, model, lean=lean, **more)
    assert found.shape == wanted.shape
    assert STEPS == 4
    np.testing.assert_allclose(found, wanted, atol=2e-4)
    assert np.array_equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("eagle", "order"), ("eagle", "no bias"), ("eagle", "a norm of the input"),
        ("eagle", "a last norm"), ("eagle", "no norm of the target"),
        ("eagle3", "order"), ("eagle3", "no hidden_norm"), ("eagle3", "layers"),
        ("eagle3", "residual"), ("eagle3", "no last norm"), ("eagle3", "the normed state again"),
    ],
)  # fmt: skip
def test_a_mistake_turns_it_red(model: Any, kind: str, wrong: str) -> None:
    found, wanted = both(kind, model, wrong)
    assert np.abs(found - wanted).max() > 1e-2


# -- taps ----------------------------------------------------------------------------


def test_taps_are_what_lies_behind_the_layers(model: Any) -> None:
    target = Target(model, {})
    plain = PlainTarget(model).states(TOKENS)
    untouched = target.hidden(mx.array(TOKENS[None]), [None] * LAYERS)
    names = [name for name, _ in model.named_modules()]
    target.tap((1, 4, LAYERS))
    hidden = target.hidden(mx.array(TOKENS[None]), [None] * LAYERS)
    taps = target.tapped()
    assert taps is not None
    assert mx.array_equal(hidden, untouched)
    assert [name for name, _ in model.named_modules()] == names
    for at, part in zip((1, 4, LAYERS), mx.split(taps, 3, axis=-1), strict=True):
        np.testing.assert_allclose(np.array(part[0]), plain[at], atol=2e-4)
    target.tap(())
    assert target.tapped() is None
    assert all(type(layer) is llama.TransformerBlock for layer in model.model.layers)


@pytest.mark.parametrize("after", [(0, 1), (2, 2), (5, 3), (LAYERS + 1,)])
def test_places_that_are_none(model: Any, after: tuple[int, ...]) -> None:
    with pytest.raises(LoadError, match=f"must rise from 1 to {LAYERS}"):
        Target(model, {}).tap(after)


def test_layers_that_put_out_something_else() -> None:
    target = Target(tiny.gemma4_model(), {})
    with pytest.raises(LoadError, match="puts out a tuple, not one hidden state"):
        target.tap((1, 2))
    assert target.tapped() is None  # and nothing stays behind
    with pytest.raises(LoadError, match="must rise"):
        Taps([], (1,))


@pytest.mark.parametrize(("layers", "places"), [(30, (2, 15, 27)), (8, USUAL), (32, (2, 16, 29))])
def test_usual_places(layers: int, places: tuple[int, ...]) -> None:
    assert usual_places(layers) == places


def test_too_few_layers_for_the_usual_places() -> None:
    with pytest.raises(LoadError, match="a target of 6 layers has no three different ones"):
        usual_places(6)


# -- configs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        (config_of(drafts=40), "eagle3"),
        (config_of(), None),
        ({"model_type": "llama", "num_hidden_layers": 30}, None),
    ],
)
def test_kinds_by_name(config: dict[str, Any], kind: str | None) -> None:
    assert named_kind(config) == kind


@pytest.mark.parametrize("kind", KINDS)
def test_spellings_mean_the_same(kind: Any) -> None:
    config = config_of(drafts=40, rope_theta=500000.0, **{IDS_KEY: [1, 3, 5]})
    plain = read_eagle(config, kind, "here")
    assert plain.aux == (1, 3, 5)
    assert read_eagle(speculators_config(config, kind), kind, "here") == plain
    table = {"rope_type": "default", "rope_theta": 500000.0}
    later = {k: v for k, v in config.items() if k != "rope_theta"} | {"rope_parameters": table}
    assert read_eagle(later, kind, "here") == plain


def test_sglang_counts_the_layer_that_a_state_comes_from() -> None:
    config = config_of(drafts=40, eagle_config={IDS_KEY: [1, 3, 4], "use_aux_hidden_state": True})
    assert read_eagle(config, "eagle3", "here").aux == USUAL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive whole number, got None"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size 32 is no multiple"),
        ({"draft_vocab_size": 65}, "draft_vocab_size must be 1 to 64, got 65"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"layernorms": True}, "layernorms is True; only heads with False are known"),
        ({IDS_KEY: [1, "2"]}, "must be a list of whole numbers"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling names no rope_type"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=f"^here: .*{message}"):
        read_eagle(config_of(drafts=40) | change, "eagle3", "here")


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("eagle", {"vocab_size": 65}, "vocab_size is 65, but the target's is 64"),
        ("eagle", {"hidden_size": 64}, "target_hidden_size is 64, but the target's is 32"),
        ("eagle", {"hidden_size": 64, "target_hidden_size": 32}, "hidden_size is 64, but"),
        ("eagle3", {"target_hidden_size": 48}, "target_hidden_size is 48, but"),
    ],
)
def test_another_target(model: Any, kind: Any, change: dict[str, Any], message: str) -> None:
    config = read_eagle(config_of() | change, kind, "here")
    with pytest.raises(LoadError, match=message):
        check_pair(config, kind, Target(model, {}), "here")


def test_a_target_of_another_kind() -> None:
    config = read_eagle(config_of(), "eagle", "here")
    with pytest.raises(LoadError, match=r"targets of the Llama kind .* not for 'gemma3_text'"):
        check_pair(config, "eagle", Target(tiny.gemma3_model(), {}), "here")


# -- the published checkpoints ---------------------------------------------------------

LAYOUTS = sorted((Path(__file__).parents[1] / "layouts" / "eagle").glob("*.json"))


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_layouts_fit_their_targets(path: Path) -> None:
    """Names and shapes at real size; sizes are those of `mlxcel pairings`."""
    layout = json.loads(path.read_text())
    core = llama.Model(llama.ModelArgs.from_dict(layout["target"]))  # never computed
    target: Any = SimpleNamespace(core=core, body=core.model, split=True, config={})
    kind = layout["kind"]
    assert named_kind(layout["config"]) in (kind, None)
    head, sources = head_for(layout["config"], kind, layout["tensors"], target, path.name)
    assert list(head.taps) == layout["taps"]
    of_target = ("embed_tokens.weight", "t2d", "d2t")
    own = [name for name in sources if name not in of_target]
    count = sum(math.prod(layout["tensors"][sources[name]]) for name in own)
    known = next(each for each in KNOWN_PAIRINGS if each.name == layout["pairing"])
    assert known.model_types == ("llama", kind)
    assert count == known.drafter_parameters


def test_there_are_layouts() -> None:
    assert len(LAYOUTS) == 3
