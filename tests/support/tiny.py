"""Tiny random models of mlx-lm architectures, with a tokenizer that needs no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import gemma3_text, gemma4_text, llama, mamba, qwen2, qwen3, qwen3_5, qwen3_next

from mlxcel.models.target import Target
from mlxcel.runtime.checkpoint import Checkpoint
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.representation import Representation

VOCAB = 64
WINDOW = 32


class LetterDetokenizer:
    """One printable character per id."""

    def __init__(self) -> None:
        self._text = ""

    def add_token(self, token: int) -> None:
        self._text += chr(48 + token % 75)

    def finalize(self) -> None:
        pass

    @property
    def last_segment(self) -> str:
        text, self._text = self._text, ""
        return text


class LetterTokenizer:
    """Stands in for mlx-lm's TokenizerWrapper."""

    has_chat_template = False

    def __init__(self, vocab: int = VOCAB, eos: tuple[int, ...] = ()) -> None:
        self.vocab = vocab
        self.eos_token_ids = set(eos)

    @property
    def detokenizer(self) -> LetterDetokenizer:
        return LetterDetokenizer()

    def encode(self, text: str) -> list[int]:
        return [(ord(character) - 48) % self.vocab for character in text]

    def get_vocab(self) -> dict[str, int]:
        return {chr(48 + token): token for token in range(self.vocab)}


def _randomised(model: Any, seed: int, scale: float) -> Any:
    keys = iter(mx.random.split(mx.random.key(seed), 4096))

    def fill(value: Any) -> Any:
        if isinstance(value, mx.array) and value.ndim >= 2:
            return mx.random.normal(value.shape, key=next(keys)) * scale
        return value

    model.update(tree_map(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


def llama_model(
    seed: int = 0, vocab: int = VOCAB, layers: int = 2, scale: float = 0.3,
    head_dim: int | None = None,
) -> Any:  # fmt: skip
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=layers,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=vocab,
        max_position_embeddings=4096,
        head_dim=head_dim,
    )
    return _randomised(llama.Model(args), seed, scale)


def qwen2_model(seed: int = 0, vocab: int = VOCAB) -> Any:
    args = qwen2.ModelArgs(
        model_type="qwen2", hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=vocab,
        tie_word_embeddings=False, max_position_embeddings=4096,
    )  # fmt: skip
    return _randomised(qwen2.Model(args), seed, 0.3)


def qwen3_model(seed: int = 0, vocab: int = VOCAB) -> Any:
    args = qwen3.ModelArgs(
        model_type="qwen3", hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=vocab,
        max_position_embeddings=4096, rope_theta=10000.0, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    return _randomised(qwen3.Model(args), seed, 0.3)


def gemma3_model(seed: int = 0, window: int = WINDOW, vocab: int = VOCAB) -> Any:
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text", hidden_size=32, num_hidden_layers=4, intermediate_size=64,
        num_attention_heads=4, head_dim=16, rms_norm_eps=1e-6, vocab_size=vocab,
        num_key_value_heads=2, sliding_window=window, sliding_window_pattern=2,
        max_position_embeddings=4096,
    )  # fmt: skip
    return _randomised(gemma3_text.Model(args), seed, 0.2)


def gemma4_model(
    seed: int = 0, window: int = WINDOW, shared: int = 0, vocab: int = VOCAB
) -> Any:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    args = gemma4_text.ModelArgs.from_dict(
        {
            "model_type": "gemma4_text",
            "hidden_size": 64,
            "num_hidden_layers": 6,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "head_dim": 16,
            "global_head_dim": 32,
            "rms_norm_eps": 1e-6,
            "vocab_size": vocab,
            "vocab_size_per_layer_input": vocab,
            "num_key_value_heads": 2,
            "num_kv_shared_layers": shared,
            "hidden_size_per_layer_input": 8 if shared else 0,
            "sliding_window": window,
            "layer_types": kinds,
            "max_position_embeddings": 4096,
            "final_logit_softcapping": 30.0,
            "use_double_wide_mlp": False,
            "enable_moe_block": False,
            "attention_k_eq_v": False,
        }
    )
    return _randomised(gemma4_text.Model(args), seed, 0.15)


def mamba_model(seed: int = 0, vocab: int = VOCAB) -> Any:
    """Its states cannot be rewound."""
    args = mamba.ModelArgs(
        model_type="mamba", vocab_size=vocab, hidden_size=32, intermediate_size=64,
        state_size=8, num_hidden_layers=2, conv_kernel=4, use_bias=False, use_conv_bias=True,
        time_step_rank=2,
    )  # fmt: skip
    return _randomised(mamba.Model(args), seed, 0.3)


HYBRID = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096, "full_attention_interval": 2,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "attention_bias": False,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24, "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip


def _remembering(model: Any, seed: int) -> Any:
    """Decays of the recurrent layers that are slow enough for the whole text to matter."""
    for at, layer in enumerate(model.layers):
        if layer.is_linear:
            keys = mx.random.split(mx.random.key(seed + 100 + at))
            heads = layer.linear_attn.A_log.shape
            decay = 0.02 + 0.3 * mx.random.uniform(shape=heads, key=keys[0])
            layer.linear_attn.A_log = mx.log(decay)
            layer.linear_attn.dt_bias = mx.random.normal(heads, key=keys[1])
    mx.eval(model.parameters())
    return model


def qwen35_text(*, experts: bool = False, vocab: int = VOCAB, tied: bool = True) -> dict[str, Any]:
    """``text_config`` of `qwen35_model`."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    kind = "qwen3_5_moe_text" if experts else "qwen3_5_text"
    return {
        "model_type": kind, "vocab_size": vocab, "tie_word_embeddings": tied,
        "rope_parameters": rope, **HYBRID, **(EXPERTS if experts else {}),
    }  # fmt: skip


def qwen35_model(
    seed: int = 0, *, experts: bool = False, vocab: int = VOCAB, tied: bool = True
) -> Any:
    kind = "qwen3_5_moe" if experts else "qwen3_5"
    text = qwen35_text(experts=experts, vocab=vocab, tied=tied)
    args = qwen3_5.ModelArgs(model_type=kind, text_config=text)
    return _remembering(_randomised(qwen3_5.Model(args), seed, 0.2), seed)


def qwen3_next_config(*, experts: bool = True, vocab: int = VOCAB) -> dict[str, Any]:
    """``config.json`` of `qwen3_next_model`."""
    none = dict.fromkeys(EXPERTS, 0) | {"decoder_sparse_step": 1, "norm_topk_prob": True}
    return {
        "model_type": "qwen3_next", "vocab_size": vocab, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5, "mlp_only_layers": [], "tie_word_embeddings": False,
        **HYBRID, **(EXPERTS if experts else none),
    }  # fmt: skip


def qwen3_next_model(seed: int = 0, *, experts: bool = True, vocab: int = VOCAB) -> Any:
    config = qwen3_next_config(experts=experts, vocab=vocab)
    args = qwen3_next.ModelArgs.from_dict(config)
    return _remembering(_randomised(qwen3_next.Model(args), seed, 0.2), seed)


HYBRIDS = {
    "qwen3.5": qwen35_model,
    "qwen3.5-moe": lambda seed=0: qwen35_model(seed, experts=True),
    "qwen3-next": qwen3_next_model,
    "qwen3-next-dense": lambda seed=0: qwen3_next_model(seed, experts=False),
}
"""Models with recurrent layers that slot caches serve."""


def loaded(model: Any, *, eos: tuple[int, ...] = (), context: int | None = None) -> LoadedModel:
    """Wrap a model object as if it had been loaded from a folder."""
    config: dict[str, Any] = {} if context is None else {"max_position_embeddings": context}
    target = Target(model, config)
    checkpoint = Checkpoint(path=Path("."), name="tiny", source="folder", fingerprint="0")
    shape = Representation("dense", "float32", "made in a test", 0)
    return LoadedModel(target, LetterTokenizer(target.vocab_size, eos), checkpoint, shape)
