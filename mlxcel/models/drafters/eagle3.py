"""EAGLE-3 heads: one decoder layer that reads hidden states of three of the target's layers.

The features of position i are the target's hidden states, before any norm, behind a low, a middle
and a high layer, joined in this order and projected down to one state. A pair is that state and
the embedding of the token at i + 1; each has a norm of its own, and both, embedding first, are the
input of the attention, whose projections are twice as wide. The residual is the state alone. The
layer's result, after a last norm, goes through an output head of the head's own, which knows a
part of the vocabulary only; before that norm, it takes the place of the state in the next pair.

The equations are those of SafeAILab's ``eagle/model/cnets.py`` and of Li et al. 2025 (EAGLE-3:
Scaling up Inference Acceleration via Training-Time Test); the variants those of vLLM's
``llama_eagle3.py``. Drafts are a chain, not a tree.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama

from mlxcel.errors import LoadError
from mlxcel.models.drafters.eagle_config import EagleConfig
from mlxcel.models.target import Target

__all__ = ["Eagle3Head", "usual_places"]


def usual_places(layers: int) -> tuple[int, int, int]:
    """Behind how many layers a head reads whose config does not say.

    Parameters
    ----------
    layers : int
        Of the target.

    Returns
    -------
    tuple of int
        The reference code's: what enters layers 2, n // 2 and n - 3, counted from 0.

    Raises
    ------
    LoadError
        So few layers have no three such places.
    """
    places = (2, layers // 2, layers - 3)
    if not places[0] < places[1] < places[2]:
        raise LoadError(
            f"an EAGLE-3 head reads behind layers 2, n/2 and n - 3, and a target of {layers} "
            "layers has no three different ones; the head's config can name others "
            "(eagle_aux_hidden_state_layer_ids)"
        )
    return places


class _Layer(nn.Module):
    """A Llama layer whose attention reads an embedding and a state, each with its norm."""

    def __init__(self, args: llama.ModelArgs, norm_before_residual: bool) -> None:
        super().__init__()
        size, bias = args.hidden_size, args.attention_bias
        attention = llama.Attention(args)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = int(attention[name].weight.shape[0])
            attention[name] = nn.Linear(2 * size, rows, bias=bias)
        self.self_attn = attention
        self.mlp = llama.MLP(args)
        self.input_layernorm = nn.RMSNorm(size, eps=args.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=args.rms_norm_eps)
        self._norm_before_residual = norm_before_residual

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        embedding, state = mx.split(x, 2, axis=-1)
        normed = self.hidden_norm(state)
        both = mx.concatenate([self.input_layernorm(embedding), normed], axis=-1)
        residual = normed if self._norm_before_residual else state
        out = residual + self.self_attn(both, mask, cache)
        return out + self.mlp(self.post_attention_layernorm(out))  # type: ignore[no-any-return]


class Eagle3Head(nn.Module):
    """EAGLE-3 head of one target.

    Parameters
    ----------
    config : EagleConfig
        That fits the target, see `check_pair`.
    target : Target
        Its embedding is shared, not copied, unless the head has its own. It is not tapped yet:
        whoever runs the head has to do so, see `taps`.
    own_embedding : bool
        Whether the head has an embedding of its own; one of another width than the target must.

    Raises
    ------
    LoadError
        The target has no such layers, or the head needs an embedding that it does not have.
    """

    def __init__(self, config: EagleConfig, target: Target, *, own_embedding: bool) -> None:
        super().__init__()
        args = config.args
        size, eps = args.hidden_size, args.rms_norm_eps
        if not own_embedding and size != config.target_hidden_size:
            raise LoadError(
                f"the head is {size} wide and the target {config.target_hidden_size}, so it needs "
                "an embedding of its own (embed_tokens.weight)"
            )
        self._taps = config.aux or usual_places(len(target.body.layers))
        wide = len(self._taps) * config.target_hidden_size
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(wide, eps=eps)
        self.fc = nn.Linear(wide, size, bias=False)
        self.midlayer = _Layer(args, config.norm_before_residual)
        self.norm = nn.RMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        if own_embedding:
            self.embed_tokens = nn.Embedding(args.vocab_size, size)
        self._target = target
        self._draft_ids: mx.array | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """Behind how many of the target's layers its features are, lowest first."""
        return self._taps

    @property
    def draft_ids(self) -> mx.array | None:
        """The target's ids of the head's logits, uint32 ``(n,)``, or ``None`` for all."""
        return self._draft_ids

    def restrict(self, draft_ids: mx.array | None) -> None:
        """Say which of the target's ids the rows of the output head are, uint32 ``(n,)``."""
        self._draft_ids = None if draft_ids is None else draft_ids.astype(mx.uint32)

    def share_embedding(self) -> None:
        """Take the target's embedding in place of an equal one of the head's own."""
        self.pop("embed_tokens", None)

    def reduce(self, features: mx.array) -> mx.array:
        """From the target's hidden states to one state.

        Parameters
        ----------
        features : mx.array
            ``(rows, width, len(taps) * hidden of the target)``.

        Returns
        -------
        mx.array
            ``(rows, width, hidden)``.
        """
        if "input_norm" in self:
            features = self.input_norm(features)
        return self.fc(features)  # type: ignore[no-any-return]

    def fuse(self, hidden: mx.array, tokens: mx.array) -> mx.array:
        """Join states with the embeddings of the tokens after them; the layer norms both.

        Parameters
        ----------
        hidden : mx.array
            ``(rows, width, hidden)`` from `reduce`, or the head's own from `forward`.
        tokens : mx.array
            uint32 ``(rows, width)``, the token that follows each state.

        Returns
        -------
        mx.array
            ``(rows, width, 2 * hidden)``, input of `forward`.
        """
        table = self.embed_tokens if "embed_tokens" in self else self._target.body.embed_tokens
        return mx.concatenate([table(tokens).astype(hidden.dtype), hidden], axis=-1)

    def forward(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """Decoder layer, without the last norm; see `ChainHead`."""
        return self.midlayer(x, mask, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``(rows, width, n)`` of `draft_ids`."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]

    def blank(self) -> mx.array:
        """See `ChainHead`."""
        weight = self.norm.weight
        return mx.zeros((1, 1, weight.shape[0]), weight.dtype)
