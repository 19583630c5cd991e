"""Which form of the weights is served, and why: by request, by memory, measured, or by rule."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchLinear

from mlxcel.errors import ConfigError, LoadError
from mlxcel.runtime.representation import Preference, Representation, represent
from tests.support import tiny

PLENTY = 1 << 40


def model(quantized: bool = True) -> Any:
    made = tiny.llama_model()
    if quantized:
        nn.quantize(made, group_size=32, bits=4)
    return made


def is_quantized(network: Any) -> bool:
    return any(hasattr(module, "bits") for _, module in network.named_modules())


class Profile:
    """Prefers a form, and remembers in which form the model was when it was asked."""

    def __init__(self, form: str, network: Any, error: Exception | None = None) -> None:
        self.form, self.network, self.error = form, network, error
        self.asked: list[bool] = []

    def __call__(self) -> Preference:
        self.asked.append(is_quantized(self.network))
        if self.error is not None:
            raise self.error
        return Preference(self.form, f"a test prefers {self.form}")


def auto(
    form: str = "dense", backend: str = "cpu", free: int = PLENTY, error: Exception | None = None
) -> tuple[Representation, Any, Profile]:
    network = model()
    profile = Profile(form, network, error)
    found = represent(network, "auto", prefer=profile, backend=backend, free=free)
    return found, network, profile


@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal"])
@pytest.mark.parametrize("form", ["stored", "dense"])
def test_auto_follows_the_profile_in_both_directions(form: str, backend: str) -> None:
    found, network, profile = auto(form, backend)
    assert (found.form, found.reason) == (form, f"a test prefers {form}")
    assert is_quantized(network) == (form == "stored")
    assert profile.asked == [True]  # once, before anything was changed


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_memory_has_the_last_word_and_nothing_is_timed(backend: str) -> None:
    found, network, profile = auto("dense", backend, free=10_000)
    assert found.form == "stored"
    assert is_quantized(network)
    assert "does not fit: 0.0 GiB needed" in found.reason
    assert profile.asked == []


@pytest.mark.parametrize(("backend", "form"), [("cpu", "dense"), ("cuda", "stored")])
def test_a_checkpoint_that_is_not_quantized_has_one_form(backend: str, form: str) -> None:
    network = model(quantized=False)
    profile = Profile("stored", network)
    found = represent(network, "auto", prefer=profile, backend=backend, free=PLENTY)
    assert (found.form, profile.asked) == (form, [])
    assert "has one form only" in found.reason


@pytest.mark.parametrize(("backend", "form"), [("cpu", "dense"), ("metal", "stored")])
@pytest.mark.parametrize(
    "error",
    [LoadError("no projection could be timed"), ConfigError("no form"), RuntimeError("no kernel")],
)
def test_without_a_profile_the_rule_of_the_backend_holds_and_is_said(
    backend: str, form: str, error: Exception
) -> None:
    other = "stored" if form == "dense" else "dense"
    found, _, _ = auto(other, backend, error=error)
    assert found.form == form
    assert "by rule" in found.reason
    assert f"no kernel profile can be taken ({error})" in found.reason


def test_without_asking_for_a_profile_too() -> None:
    found = represent(model(), "auto", backend="cpu", free=PLENTY)
    assert found.form == "dense"
    assert found.reason.endswith("no kernel profile was asked for")


@pytest.mark.parametrize("weights", ["stored", "dense"])
def test_what_is_asked_for_is_served_and_nothing_is_timed(weights: str) -> None:
    network = model()
    profile = Profile("dense" if weights == "stored" else "stored", network)
    found = represent(network, weights, prefer=profile, backend="cpu", free=PLENTY)
    assert (found.form, found.reason, profile.asked) == (weights, "asked for", [])


def test_dense_that_does_not_fit_is_an_error_when_asked_for() -> None:
    with pytest.raises(LoadError, match="does not fit"):
        represent(model(), "dense", backend="cpu", free=10_000)


def with_experts() -> Any:
    network = model()
    network.experts = SwitchLinear(32, 64, num_experts=2).to_quantized(group_size=32, bits=4)
    return network


def test_modules_without_a_dense_form_stay_as_stored() -> None:
    network = with_experts()
    profile = Profile("dense", network)
    found = represent(network, "auto", prefer=profile, backend="cpu", free=PLENTY)
    assert (found.form, profile.asked) == ("stored", [])
    assert "experts is a QuantizedSwitchLinear" in found.reason
    with pytest.raises(LoadError, match="QuantizedSwitchLinear, which cannot be made dense"):
        represent(with_experts(), "dense", backend="cpu", free=PLENTY)


def test_a_gpu_keeps_the_type_of_the_checkpoint() -> None:
    network = model()
    network.set_dtype(mx.bfloat16)
    found = represent(network, "dense", backend="cuda", free=PLENTY)
    assert found.dtype == "bfloat16"


def test_decays_of_recurrent_layers_stay_as_exact_as_they_are() -> None:
    network = tiny.qwen35_model()
    network.set_dtype(mx.bfloat16)
    layer = network.layers[0].linear_attn
    layer.A_log = layer.A_log.astype(mx.float32)
    represent(network, "stored", backend="cuda", free=PLENTY)
    assert layer.A_log.dtype == mx.float32
    assert {layer.dt_bias.dtype, layer.in_proj_a.weight.dtype} == {mx.bfloat16}
