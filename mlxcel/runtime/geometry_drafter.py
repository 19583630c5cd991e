"""Drafters of a published size with made-up weights: what one step of them costs.

Built from mlx-lm's layers. They run the operations of the real drafters on arrays of the real
shapes and propose nothing of use; which positions a mask hides does not change the cost.
"""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text, qwen3_5
from mlx_lm.models.cache import KVCache

from mlxcel.models.target import Target
from mlxcel.runtime.geometry import DrafterGeometry, Geometry
from mlxcel.runtime.geometry_model import cast, evaluate, quantized

__all__ = ["AssistantDrafter", "CostDrafter", "MtpDrafter", "SharedKeys", "build_drafter"]

SharedKeys = dict[str, tuple[mx.array, mx.array]]
"""Keys and values of the target's last sliding and last full layer, by kind of layer."""


class CostDrafter(Protocol):
    """A drafter, one row, one step at a time."""

    nbytes: int

    def begin(self) -> None:
        """Forget what was drafted since the drafter was made."""

    def step(
        self, token: mx.array, hidden: mx.array, shared: SharedKeys, length: mx.array
    ) -> tuple[mx.array, mx.array]:
        """One draft: uint32 ``(1, 1)`` and hidden ``(1, 1, size)`` to the next of both."""

    def absorb(self, tokens: mx.array, hidden: mx.array) -> None:
        """Take in the true pairs of a verify, ``(1, width)`` and ``(1, width, size)``."""


def build_drafter(geometry: Geometry, target: Target, dtype: mx.Dtype, context: int) -> CostDrafter:
    """Build the drafter of a geometry on this thread.

    Parameters
    ----------
    geometry : Geometry
        With a drafter.
    target : Target
        Its embedding and, for an MTP head, its output head are shared.
    dtype : mx.Dtype
        Type of activations.
    context : int
        Pairs in the cache of a drafter that has one.
    """
    drafter = geometry.drafter
    if drafter is None:
        raise AssertionError(f"{geometry.name} has no drafter")
    if drafter.kind == "gemma4_assistant":
        return AssistantDrafter(drafter, target, dtype)
    return MtpDrafter(drafter, target, dtype, context)


class AssistantDrafter(nn.Module):
    """Gemma 4 assistant: layers with queries only, on the target's keys and values.

    One step as in transformers' ``Gemma4AssistantForCausalLM`` with a dense head: the scaled
    embedding and the hidden state, joined and projected down; the layers; the logits; the
    hidden state projected up again.
    """

    def __init__(self, geometry: DrafterGeometry, target: Target, dtype: mx.Dtype) -> None:
        super().__init__()
        args = gemma4_text.ModelArgs.from_dict(dict(geometry.config))
        size, outer = args.hidden_size, int(target.text_config["hidden_size"])
        self.embed_tokens = nn.Embedding(args.vocab_size, size)
        self.layers = [gemma4_text.DecoderLayer(args, at) for at in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(size, eps=args.rms_norm_eps)
        self.pre_projection = nn.Linear(2 * outer, size, bias=False)
        self.post_projection = nn.Linear(size, outer, bias=False)
        self.eval()
        cast(self, dtype)
        quantized(self, geometry.quantization)
        evaluate(self, "drafter")
        self._body = target.body
        self.nbytes = _bytes(self)

    def begin(self) -> None:
        """See `CostDrafter`; it has no state of its own."""

    def step(
        self, token: mx.array, hidden: mx.array, shared: SharedKeys, length: mx.array
    ) -> tuple[mx.array, mx.array]:
        """See `CostDrafter`."""
        embedding = self._body.embed_tokens(token) * self._body.embed_scale
        x = self.pre_projection(mx.concatenate([embedding, hidden], axis=-1))
        masks = {
            kind: (mx.arange(keys.shape[2]) < length)[None, None, None]
            for kind, (keys, _) in shared.items()
        }
        for layer in self.layers:
            kind = layer.layer_type
            x, _, _ = layer(x, masks[kind], None, shared_kv=shared[kind], offset=length)
        x = self.norm(x)
        logits = self.embed_tokens.as_linear(x)
        return mx.argmax(logits, axis=-1), self.post_projection(x)

    def absorb(self, tokens: mx.array, hidden: mx.array) -> None:
        """See `CostDrafter`; the next draft needs the last hidden state alone."""


class MtpDrafter(nn.Module):
    """Qwen 3.5 head: one full-attention layer with a cache, under the target's output head.

    As `mlxcel.runtime.mtp.MtpChain` runs it: the pass over the true pairs gives the state of the
    next draft, so that draft costs the output head alone.
    """

    def __init__(
        self, geometry: DrafterGeometry, target: Target, dtype: mx.Dtype, context: int
    ) -> None:
        super().__init__()
        args = target.core.args
        size, eps = int(args.hidden_size), float(args.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.layer = qwen3_5.DecoderLayer(args, layer_idx=args.full_attention_interval - 1)
        self.norm = nn.RMSNorm(size, eps=eps)
        self.eval()
        cast(self, dtype)
        quantized(self, geometry.quantization, target.core.quant_predicate)
        evaluate(self, "drafter")
        self.nbytes = _bytes(self)
        shape = (1, int(args.num_key_value_heads), context, int(args.head_dim))
        self._target, self._cache, self._context = target, KVCache(), context
        self._cache.update_and_fetch(*(mx.random.normal(shape).astype(dtype) for _ in range(2)))
        mx.eval(self._cache.keys, self._cache.values)
        self._chained = 0  # entries of drafts in the cache
        self._state: mx.array | None = None

    def begin(self) -> None:
        """See `CostDrafter`."""
        self._cache.trim(self._cache.offset - self._context)
        self._chained, self._state = 0, None

    def step(
        self, token: mx.array, hidden: mx.array, shared: SharedKeys, length: mx.array
    ) -> tuple[mx.array, mx.array]:
        """See `CostDrafter`."""
        state, self._state = self._state, None
        if state is None:
            state = self._read(token, hidden, None)
            self._chained += 1
        return mx.argmax(self._target.logits(state), axis=-1), state

    def absorb(self, tokens: mx.array, hidden: mx.array) -> None:
        """See `CostDrafter`: the true pairs replace the chained ones; one of them stays."""
        self._cache.trim(self._chained)
        self._chained = 0
        self._state = self._read(tokens, hidden, "causal")[:, :1]
        self._cache.trim(int(tokens.shape[1]) - 1)

    def _read(self, tokens: mx.array, hidden: mx.array, mask: Any) -> mx.array:
        embedding = self._target.body.embed_tokens(tokens).astype(hidden.dtype)
        parts = [self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(parts, axis=-1))
        return self.norm(self.layer(x, mask, self._cache))  # type: ignore[no-any-return]


def _bytes(module: nn.Module) -> int:
    return sum(int(value.nbytes) for _, value in tree_flatten(module.parameters()))
