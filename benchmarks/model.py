"""A model and a drafter for benchmarks that need no file: seeded weights, a small llama's shape."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models import llama

from mlxcel.config import Settings
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.models.lean import lean_modules
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.representation import detect_backend
from tests.support.tiny import loaded

__all__ = ["VOCABULARY", "prompt", "random_head", "small_model"]

VOCABULARY = 4096


def small_model(seed: int = 0) -> LoadedModel:
    """Six layers of 256, dense float32, with the modules that this host would serve."""
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=256,
        num_hidden_layers=6,
        intermediate_size=768,
        num_attention_heads=8,
        num_key_value_heads=4,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
    )
    mx.random.seed(seed)
    model = llama.Model(args)
    if detect_backend() == "cpu":
        lean_modules(model)
    mx.eval(model.parameters())
    return loaded(model)


def random_head(model: LoadedModel, settings: Settings, seed: int = 1) -> MtpDrafter:
    """A head of seeded weights on a model: what it costs is that of a good one."""
    mx.random.seed(seed)
    head = MTPHead(model.target)
    mx.eval(head.parameters())
    chain = MtpChain(head, slack=settings.max_width, length_step=settings.length_step)
    return MtpDrafter(chain)


def prompt(length: int, number: int = 0) -> tuple[int, ...]:
    """Token ids of a prompt; another number, another prompt from its first token on."""
    return tuple((17 + 31 * number + 7 * at * at) % VOCABULARY for at in range(length))
