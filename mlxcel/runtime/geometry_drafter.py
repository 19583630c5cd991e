"""Drafters of a published size with made-up weights: what a step and a round of them cost.

Assistants are the real ones (`mlxcel.runtime.assistant`), on the target's slot caches. A head
for recurrent targets runs beside mlx-lm's caches, from mlx-lm's own layer, since slot caches
cannot serve those yet.
"""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text, qwen3_5
from mlx_lm.models.cache import KVCache

from mlxcel.models.drafters.gemma4_assistant import Gemma4Assistant
from mlxcel.models.drafters.gemma4_assistant_config import AssistantConfig, check_pair
from mlxcel.models.target import Target
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.cost_rows import CostRow, SlotRow
from mlxcel.runtime.geometry import DrafterGeometry, Geometry
from mlxcel.runtime.geometry_model import cast, evaluate, quantized

__all__ = ["AssistantDrafter", "CostDrafter", "MtpDrafter", "assistant_config", "build_drafter"]


class CostDrafter(Protocol):
    """A drafter beside one row."""

    nbytes: int

    def begin(self) -> None:
        """Forget what was drafted; the row has been put back to its first length."""

    def draft(self, width: int) -> mx.array:
        """Build ``width - 1`` drafts behind the row's bonus token, uint32 ``(1, width - 1)``."""

    def absorb(self) -> None:
        """Take in the row's last verify."""


def build_drafter(
    geometry: Geometry, row: CostRow, dtype: mx.Dtype, context: int
) -> CostDrafter:
    """Build the drafter of a geometry on this thread.

    Parameters
    ----------
    geometry : Geometry
        With a drafter.
    row : CostRow
        What it drafts for; embedding, caches or output head of its target are shared.
    dtype : mx.Dtype
        Type of activations.
    context : int
        Pairs in the cache of a drafter that has one.

    Raises
    ------
    LoadError
        An assistant's sizes do not fit the target's.
    """
    drafter = geometry.drafter
    if drafter is None:
        raise AssertionError(f"{geometry.name} has no drafter")
    if drafter.kind == "gemma4_assistant":
        assert isinstance(row, SlotRow)
        return AssistantDrafter(drafter, row, dtype)
    return MtpDrafter(drafter, row, dtype, context)


def assistant_config(geometry: DrafterGeometry, backbone: int) -> AssistantConfig:
    """Config of an assistant with a dense head.

    Parameters
    ----------
    geometry : DrafterGeometry
        Its sizes.
    backbone : int
        Hidden size of the target.
    """
    args = gemma4_text.ModelArgs.from_dict(dict(geometry.config))
    return AssistantConfig(args, backbone_hidden_size=backbone, centroids=0, top_k=0)


class AssistantDrafter:
    """A Gemma 4 assistant on a row's slot caches."""

    def __init__(self, geometry: DrafterGeometry, row: SlotRow, dtype: mx.Dtype) -> None:
        target = row.target
        config = assistant_config(geometry, int(target.text_config["hidden_size"]))
        check_pair(config, target.core.args, geometry.checkpoint)
        assistant = Gemma4Assistant(config, target)
        assistant.eval()
        cast(assistant, dtype)
        quantized(assistant, geometry.quantization)
        evaluate(assistant, "drafter")
        self.nbytes = _bytes(assistant)
        self._row, self._chain = row, AssistantChain(assistant)

    def begin(self) -> None:
        """See `CostDrafter`; the newest hidden state is all that it begins with."""
        self._chain.state = self._row.hidden[:, :1]

    def draft(self, width: int) -> mx.array:
        """See `CostDrafter`."""
        row = self._row
        return self._chain.draft(row.batch, width, bound=row.bound(width), exact=None)

    def absorb(self) -> None:
        """See `CostDrafter`."""
        if self._row.check is not None:
            self._chain.absorb(self._row.check)


class MtpDrafter:
    """Qwen 3.5 head: one full-attention layer with a cache, under the target's output head.

    As `mlxcel.runtime.mtp.MtpChain` runs it: the pass over the true pairs gives the state of the
    next draft, so that draft costs the output head alone.
    """

    def __init__(
        self, geometry: DrafterGeometry, row: CostRow, dtype: mx.Dtype, context: int
    ) -> None:
        target = row.target
        self._head = head = _MtpHead(target)
        head.eval()
        cast(head, dtype)
        quantized(head, geometry.quantization, target.core.quant_predicate)
        evaluate(head, "drafter")
        self.nbytes = _bytes(head)
        args = target.core.args
        shape = (1, int(args.num_key_value_heads), context, int(args.head_dim))
        self._row, self._cache, self._context = row, KVCache(), context
        self._cache.update_and_fetch(*(mx.random.normal(shape).astype(dtype) for _ in range(2)))
        mx.eval(self._cache.keys, self._cache.values)
        self._chained = 0  # entries of drafts in the cache
        self._state: mx.array | None = None

    @property
    def pairs(self) -> int:
        """Entries in the cache."""
        return int(self._cache.offset)

    def begin(self) -> None:
        """See `CostDrafter`."""
        self._cache.trim(self._cache.offset - self._context)
        self._chained, self._state = 0, None

    def draft(self, width: int) -> mx.array:
        """See `CostDrafter`."""
        token, state = self._row.bonus[None], self._row.hidden[:, :1]
        drafts = []
        for _ in range(width - 1):
            if self._state is None:
                state = self._head(token, state, None, self._cache)
                self._chained += 1
            else:
                state, self._state = self._state, None
            token = mx.argmax(self._row.target.logits(state), axis=-1)
            drafts.append(token)
        return mx.concatenate(drafts, axis=1)

    def absorb(self) -> None:
        """See `CostDrafter`: the true pairs replace the chained ones; one of them stays."""
        self._cache.trim(self._chained)
        self._chained = 0
        tokens = self._row.choices
        states = self._head(tokens, self._row.hidden, "causal", self._cache)
        self._state = states[:, :1]
        self._cache.trim(int(tokens.shape[1]) - 1)


class _MtpHead(nn.Module):
    """The head's own matrices: pair to hidden state, as `mlxcel.models.drafters.mtp` has it."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        args = target.core.args
        size, eps = int(args.hidden_size), float(args.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.layer = qwen3_5.DecoderLayer(args, layer_idx=args.full_attention_interval - 1)
        self.norm = nn.RMSNorm(size, eps=eps)
        self._target = target

    def __call__(self, tokens: mx.array, hidden: mx.array, mask: Any, cache: Any) -> mx.array:
        """Pass over pairs of a token and the hidden state before it, ``(1, width, size)``."""
        embedding = self._target.body.embed_tokens(tokens).astype(hidden.dtype)
        parts = [self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(parts, axis=-1))
        return self.norm(self.layer(x, mask, cache))  # type: ignore[no-any-return]


def _bytes(module: nn.Module) -> int:
    return sum(int(value.nbytes) for _, value in tree_flatten(module.parameters()))
