"""Published geometries: their sizes, and models that are built from them without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text
from mlx_lm.utils import quantize_model

from mlxcel.assets import published_geometries
from mlxcel.errors import ConfigError
from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant
from mlxcel.models.drafters.gemma4_assistant_config import check_pair
from mlxcel.runtime.geometry import parse_geometry
from mlxcel.runtime.geometry_drafter import assistant_config
from mlxcel.runtime.geometry_model import _lazy_model, build_target, needed_bytes
from tests.support.geometries import GEOMETRIES, tiny, tiny_geometry

# -- sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions", "stored_gb"),
    [
        ("gemma-4-31b", 30.7, 17.3),  # 30.7 on its card; 17.3 GB as an MLX checkpoint
        ("gemma-4-12b", 11.9, 6.7),
        ("gemma-4-26b-a4b", 25.2, 14.2),
        ("qwen3.5-27b", 26.9, 15.1),
        ("qwen3.5-35b-a3b", 34.7, 19.5),
    ],
)
def test_published_sizes_have_the_published_number_of_weights(
    name: str, billions: float, stored_gb: float
) -> None:
    """Nothing is allocated: the arrays are lazy."""
    before = mx.get_active_memory()
    geometry = parse_geometry(name, published_geometries()[name])

    def weights(form: str) -> float:
        parameters = tree_flatten(_lazy_model(geometry, form, mx.bfloat16).parameters())
        return sum(value.nbytes for _, value in parameters) / 1e9

    assert weights("dense") == pytest.approx(2 * billions, rel=0.015)
    assert weights("stored") == pytest.approx(stored_gb, rel=0.02)
    assert mx.get_active_memory() - before < 1 << 20


@pytest.mark.parametrize(
    ("name", "layers", "fine"),
    [("gemma-4-31b", 12, True), ("gemma-4-31b", 10, False), ("gemma-4-31b", 66, False),
     ("qwen3.5-27b", 4, True), ("qwen3.5-27b", 6, False)],
)  # fmt: skip
def test_layers_come_in_whole_patterns(name: str, layers: int, fine: bool) -> None:
    geometry = parse_geometry(name, published_geometries()[name])
    if fine:
        fewer = geometry.with_layers(layers)
        assert (fewer.layers, fewer.layers_published) == (layers, geometry.layers)
        return
    with pytest.raises(ConfigError, match=f"multiple of {geometry.pattern}"):
        geometry.with_layers(layers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["config"].update(model_type="bert"), "model_type must be gemma4_text or"),
        (lambda d: d["config"].pop("hidden_size"), "hidden_size must be a positive whole"),
        (lambda d: d["config"].update(sliding_window_pattern=True), "sliding_window_pattern"),
        (lambda d: d.pop("source"), "source must be there"),
        (lambda d: d["quantization"].update(bits="4"), "bits must be a positive whole"),
        (lambda d: d["drafter"].update(kind="eagle"), "drafter: kind must be gemma4_assistant"),
        (lambda d: d.update(drafter=7), "drafter must be an object"),
        (lambda d: d.update(config=[]), "config"),
    ],
)
def test_a_bad_geometry_is_named(change: Callable[[Any], None], message: str) -> None:
    data = tiny_geometry("tiny-gemma4")
    change(data)
    with pytest.raises(ConfigError, match=message):
        parse_geometry("bad", data)


# -- building ------------------------------------------------------------------------


@pytest.mark.parametrize("name", tuple(GEOMETRIES))
def test_the_stored_form_is_what_mlx_lm_makes_of_it(name: str) -> None:
    geometry = tiny(name)
    ours = build_target(geometry, "stored", mx.float32).model
    theirs, _ = quantize_model(_lazy_model(geometry, "dense", mx.float32), {}, 32, 4)

    def layout(model: Any) -> dict[str, tuple[Any, ...]]:
        return {p: (v.shape, v.dtype) for p, v in tree_flatten(model.parameters())}

    assert layout(ours) == layout(theirs)
    bits = {m.bits for _, m in ours.named_modules() if hasattr(m, "bits")}
    assert bits == ({4, 8} if "moe" in name else {4})


def test_decay_rates_stay_in_single_precision() -> None:
    model = _lazy_model(tiny("tiny-qwen3_5"), "stored", mx.bfloat16)
    kinds = {p.rpartition(".")[2]: v.dtype for p, v in tree_flatten(model.parameters())}
    assert (kinds["A_log"], kinds["scales"]) == (mx.float32, mx.bfloat16)


@pytest.mark.parametrize("form", ["stored", "dense"])
def test_the_bytes_needed_bound_the_bytes_taken(form: str) -> None:
    geometry = tiny("tiny-gemma4")
    needed = needed_bytes(geometry, form, mx.float32)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    target = build_target(geometry, form, mx.float32)
    assert target.nbytes < needed
    # Beside the weights there are what evaluation keeps of them and a pass over two tokens.
    assert mx.get_peak_memory() - before < 2 * needed


@pytest.mark.parametrize("name", ["gemma-4-31b", "gemma-4-12b", "gemma-4-26b-a4b"])
def test_published_assistants_fit_their_targets(name: str) -> None:
    """Parameters of the 31B's and the 12B's by their cards: 470 and 423 million."""
    geometry = parse_geometry(name, published_geometries()[name])
    assert geometry.drafter is not None
    size = int(geometry.config["hidden_size"])
    config = assistant_config(geometry.drafter, size)
    target = gemma4_text.ModelArgs.from_dict(geometry.model_args())
    check_pair(config, target, name)

    class Shared:
        core = SimpleNamespace(args=target)

    assistant = Gemma4Assistant(config, Shared())  # type: ignore[arg-type]
    weights = sum(value.size for _, value in tree_flatten(assistant.parameters()))
    published = {"gemma-4-31b": 470e6, "gemma-4-12b": 423e6}
    assert weights == pytest.approx(published.get(name, weights), rel=0.005)
