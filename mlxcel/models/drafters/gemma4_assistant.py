"""Gemma 4 assistants: a few query-only layers that read the target's keys and values.

A step takes a token and a hidden state of the target's size. The token's embedding is the
target's, scaled as the target scales it; embedding and state are joined in this order and
projected down. Each layer asks the keys and values that the target's last layer of its kind has
written, and adds none of its own: there is no state to keep, to rewind or to catch up with. The
result, after a last norm, gives the logits, and projected up again the hidden state of the next
step. All steps of a round have one position and see the same keys.

The equations are those of transformers 5.24, ``models/gemma4_assistant``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text

from mlxcel.errors import LoadError
from mlxcel.models.drafters.gemma4_assistant_config import (
    AssistantConfig,
    check_pair,
    read_assistant,
    source_layers,
)
from mlxcel.models.drafters.mtp import model_type
from mlxcel.models.target import Target

__all__ = ["Gemma4Assistant", "Source", "build_assistant"]


class Source(NamedTuple):
    """What the layers of one kind may read of a row's text.

    Attributes
    ----------
    keys, values : mx.array
        ``(rows, kv_heads, columns, head_dim)``, normed and rotated.
    mask : mx.array or None
        bool ``(rows, 1, 1, columns)``; ``None`` where all columns are seen.
    """

    keys: mx.array
    values: mx.array
    mask: mx.array | None


class _Layers(nn.Module):
    """The assistant's own layers, under the names of its checkpoint."""

    def __init__(self, args: gemma4_text.ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [gemma4_text.DecoderLayer(args, at) for at in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


class _OrderedHead(nn.Module):
    """Clusters of the vocabulary: only the tokens of the most likely ones are scored."""

    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        self.centroids = nn.Linear(config.args.hidden_size, config.centroids, bias=False)
        self.token_ordering = mx.zeros((config.args.vocab_size,), mx.uint32)
        self._top_k = config.top_k

    def candidates(self, hidden: mx.array) -> mx.array:
        """Ids ``(rows, 1, top_k * cluster)`` worth scoring, uint32, in no particular order."""
        scores = self.centroids(hidden)
        clusters = self.token_ordering.reshape(scores.shape[-1], -1)
        best = mx.argpartition(-scores, kth=self._top_k - 1, axis=-1)[..., : self._top_k]
        return clusters[best].reshape(*hidden.shape[:-1], -1)


class Gemma4Assistant(nn.Module):
    """Assistant of one target.

    Parameters
    ----------
    config : AssistantConfig
        That fits the target, see `check_pair`.
    target : Target
        Its embedding is shared, not copied.
    """

    def __init__(self, config: AssistantConfig, target: Target) -> None:
        super().__init__()
        args, backbone = config.args, config.backbone_hidden_size
        self.model = _Layers(args)
        self.pre_projection = nn.Linear(2 * backbone, args.hidden_size, bias=False)
        self.post_projection = nn.Linear(args.hidden_size, backbone, bias=False)
        if config.centroids:
            self.masked_embedding = _OrderedHead(config)
        self.window = int(args.sliding_window)
        of_target = source_layers(target.core.args)
        self._sources = tuple((kind, of_target[kind]) for kind in dict.fromkeys(args.layer_types))
        self._target = target

    @property
    def sources(self) -> tuple[tuple[str, int], ...]:
        """Kinds of its layers, and which of the target's caches each reads."""
        return self._sources

    def step(
        self,
        tokens: mx.array,
        state: mx.array,
        sources: Mapping[str, Source],
        position: int | mx.array,
    ) -> mx.array:
        """One step for every row.

        Parameters
        ----------
        tokens : mx.array
            uint32 ``(rows, 1)``.
        state : mx.array
            ``(rows, 1, hidden of the target)``: the target's after its final norm at the first
            step, then `project`'s.
        sources : mapping
            By kind of layer.
        position : int or mx.array
            Of all queries of the round; int32 ``(rows,)`` where rows differ.

        Returns
        -------
        mx.array
            ``(rows, 1, hidden)``, input of `logits` and `project`.
        """
        x = self.pre_projection(self.joined(tokens, state))
        for layer in self.model.layers:
            keys, values, mask = sources[layer.layer_type]
            x, _, _ = layer(x, mask, None, shared_kv=(keys, values), offset=position)
        return self.model.norm(x)  # type: ignore[no-any-return]

    def joined(self, tokens: mx.array, state: mx.array) -> mx.array:
        """Embedding and state, ``(rows, 1, 2 * hidden of the target)``; see `step`."""
        body = self._target.body
        embedding = (body.embed_tokens(tokens) * body.embed_scale).astype(state.dtype)
        return mx.concatenate([embedding, state], axis=-1)

    def project(self, hidden: mx.array) -> mx.array:
        """Hidden state of the next step, ``(rows, 1, hidden of the target)``."""
        return self.post_projection(hidden)  # type: ignore[no-any-return]

    def logits(self, hidden: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits of the next token, not capped.

        Returns
        -------
        mx.array
            ``(rows, 1, n)``.
        mx.array or None
            uint32 ``(rows, 1, n)``: the ids they belong to; ``None`` for the whole vocabulary.
        """
        embedding = self.model.embed_tokens
        if "masked_embedding" not in self:
            return embedding.as_linear(hidden), None
        ids = self.masked_embedding.candidates(hidden)
        return (embedding(ids) @ hidden[..., None])[..., 0], ids


def build_assistant(config: Mapping[str, Any], target: Target, where: str) -> Gemma4Assistant:
    """Make an assistant without weights for a target, once everything has been checked.

    Parameters
    ----------
    config : mapping
        The assistant's ``config.json``.
    target : Target
        The model it shall draft for.
    where : str
        The assistant's config file, for messages.

    Raises
    ------
    LoadError
        The target is no Gemma 4, or another one than the assistant was made for.
    """
    read = read_assistant(config, where)
    if not isinstance(target.core, gemma4_text.Model) or not target.split:
        raise LoadError(
            f"{where}: a Gemma 4 assistant drafts for Gemma 4 targets, not for "
            f"{model_type(target)!r}"
        )
    check_pair(read, target.core.args, where)
    return Gemma4Assistant(read, target)
