"""Both spellings of Gemma 4 configs, and the defaults that mlx-lm does not have."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.errors import LoadError
from mlxcel.models.gemma4_config import complete_config, complete_text_config

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = [SLIDING, FULL, SLIDING, FULL]


def text(**more: Any) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text", "hidden_size": 64, "head_dim": 16, "num_key_value_heads": 4,
        "num_hidden_layers": 4, "layer_types": KINDS, "attention_k_eq_v": True, **more,
    }  # fmt: skip


def test_both_spellings_mean_the_same() -> None:
    flat = complete_text_config(text(global_head_dim=32, num_global_key_value_heads=1), "here")
    own = {"head_dim": 32, "num_key_value_heads": 1}
    by_layer = complete_text_config(text(per_layer_config={"1": own, "3": own}), "here")
    assert by_layer == flat
    assert "per_layer_config" not in by_layer


def test_what_a_saved_config_leaves_out_is_transformers_default() -> None:
    full = complete_text_config({"model_type": "gemma4_text"}, "here")
    assert full["num_kv_shared_layers"] == 0  # mlx-lm assumes 20
    assert full["use_double_wide_mlp"] is False  # mlx-lm assumes true
    assert full["final_logit_softcapping"] is None  # mlx-lm assumes 30
    assert (full["global_head_dim"], full["num_global_key_value_heads"]) == (512, None)
    assert full["layer_types"].count(FULL) == 5
    assert full["layer_types"][5::6] == [FULL] * 5
    assert full["rope_parameters"][FULL]["rope_type"] == "proportional"


def test_the_unified_kind_has_no_embeddings_per_layer() -> None:
    full = complete_text_config({"model_type": "gemma4_unified_text"}, "here")
    assert full["hidden_size_per_layer_input"] == 0
    assert (full["sliding_window"], full["max_position_embeddings"]) == (1024, 262144)


def test_what_is_there_stays() -> None:
    given = text(global_head_dim=8, num_kv_shared_layers=2, use_double_wide_mlp=True, more=1)
    full = complete_text_config(given, "here")
    assert given.items() <= full.items()
    assert complete_text_config(text(hidden_size_per_layer_input=None), "here")[
        "hidden_size_per_layer_input"
    ] == 0


@pytest.mark.parametrize(
    ("per_layer", "said"),
    [
        ({"1": {"hidden_size": 8}}, "overrides hidden_size of layer 1"),
        ({"1": {"head_dim": 32}}, "full_attention layer 3"),
        ({"0": {"head_dim": 32}}, "sliding_attention layer 0"),
    ],
)
def test_layers_that_mlx_lm_cannot_make(per_layer: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match=said) as caught:
        complete_text_config(text(per_layer_config=per_layer), "folder/config.json")
    assert str(caught.value).startswith("folder/config.json")


def test_fewer_key_heads_need_shared_keys_and_values() -> None:
    own = {"num_key_value_heads": 1}
    with pytest.raises(LoadError, match="needs attention_k_eq_v"):
        complete_text_config(
            text(per_layer_config={"1": own, "3": own}, attention_k_eq_v=False), "here"
        )


def test_whole_configs() -> None:
    assert complete_config({"model_type": "llama", "hidden_size": 8}, "here") == {}
    outer = complete_config({"model_type": "gemma4", "text_config": text(vocab_size=9)}, "here")
    assert outer["vocab_size"] == outer["text_config"]["vocab_size"] == 9
    assert complete_config(text(), "here")["num_kv_shared_layers"] == 0
