"""EAGLE-1 heads: one decoder layer that predicts the target's next final hidden state.

A pair (final hidden state at position i, token at i + 1) is joined, embedding first, projected
down and passed through a Llama layer that has no norm in front of its attention. There is no norm
behind it either: the result is the prediction of the hidden state at i + 1, which goes through the
target's output head and is the hidden state of the next pair. Embedding and output head are the
target's.

The equations are those of SafeAILab's ``eagle/model/cnets1.py`` and of Li et al. 2024 (EAGLE:
Speculative Sampling Requires Rethinking Feature Uncertainty). Drafts are a chain, not a tree.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama

from mlxcel.models.drafters.chain_head import FinalFeatures
from mlxcel.models.drafters.eagle_config import EagleConfig
from mlxcel.models.target import Target

__all__ = ["EagleHead"]


class _Layer(nn.Module):
    """A Llama layer without the norm of its input, under the names of its checkpoint."""

    def __init__(self, args: llama.ModelArgs) -> None:
        super().__init__()
        self.self_attn = llama.Attention(args)
        self.mlp = llama.MLP(args)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        x = x + self.self_attn(x, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class EagleHead(FinalFeatures, nn.Module):
    """EAGLE-1 head of one target.

    Parameters
    ----------
    config : EagleConfig
        That fits the target, see `check_pair`.
    target : Target
        Its embedding and output head are shared, not copied.
    bias : bool
        Whether the joining projection has a bias: the authors' default, and not vLLM's.
    """

    draft_ids: mx.array | None = None

    def __init__(self, config: EagleConfig, target: Target, *, bias: bool) -> None:
        super().__init__()
        size = config.args.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=bias)
        self.layers = [_Layer(config.args)]
        self._target = target

    def fuse(self, hidden: mx.array, tokens: mx.array) -> mx.array:
        """Join hidden states with the embeddings of the tokens after them.

        Parameters
        ----------
        hidden : mx.array
            ``(rows, width, hidden)``, the target's after its final norm, or the head's own.
        tokens : mx.array
            uint32 ``(rows, width)``, the token that follows each hidden state.

        Returns
        -------
        mx.array
            ``(rows, width, hidden)``, input of `forward`.
        """
        embedding = self._target.body.embed_tokens(tokens).astype(hidden.dtype)
        return self.fc(mx.concatenate([embedding, hidden], axis=-1))  # type: ignore[no-any-return]

    def forward(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """Decoder layer; see `ChainHead`."""
        return self.layers[0](x, mask, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``(rows, width, vocabulary)`` by the target's output head."""
        return self._target.logits(hidden)

    def blank(self) -> mx.array:
        """See `ChainHead`."""
        norm = self.layers[0].post_attention_layernorm.weight
        return mx.zeros((1, 1, norm.shape[0]), norm.dtype)
