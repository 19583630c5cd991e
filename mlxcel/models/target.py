"""Target adapters: what the engine needs of an mlx-lm model, without a fork of it.

The adapter splits a model into body (tokens to final hidden states) and head (hidden
states to logits), so that prefill computes logits of one position only and a drafter can
read the hidden states. Whether the split is right is checked on two tokens at load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlxcel.errors import LoadError
from mlxcel.models.gated_delta import is_recurrent, use_state_caches
from mlxcel.models.taps import Taps

__all__ = ["CacheLayout", "Target"]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What kind of caches a model needs.

    Attributes
    ----------
    windows : tuple of int or None, or None
        Per cache: ``None`` for full attention, else the sliding window in tokens. The
        whole is ``None`` when the model has a cache that cannot rewind.
    reason : str
        Why speculation and batching are not available, else empty.
    states : tuple of int
        Which of the caches hold a recurrent state instead of keys and values.
    """

    windows: tuple[int | None, ...] | None
    reason: str = ""
    states: tuple[int, ...] = ()

    @property
    def uncut(self) -> str:
        """Why no prefix of a row can be copied out, else empty."""
        if self.windows is None:
            return self.reason
        if self.states:
            return "a recurrent state belongs to one length, so no prefix of it can be taken"
        return ""


class Target:
    """A loaded mlx-lm model, seen as body and head.

    Parameters
    ----------
    model : nn.Module
        Model object of mlx-lm.
    config : dict
        Its ``config.json``.
    """

    def __init__(self, model: nn.Module, config: dict[str, Any]) -> None:
        self.model = model
        self.config = config
        self.text_config: dict[str, Any] = config.get("text_config") or config
        self.core: Any = getattr(model, "language_model", model)
        self.body: Any = getattr(self.core, "model", None)
        self.layout = cache_layout(model)
        if self.layout.states:
            use_state_caches(model)
        self.split = self._split_holds()
        self._taps: Taps | None = None

    @property
    def context_length(self) -> int | None:
        """Positions the model was made for, or ``None`` when its config does not say."""
        value = self.text_config.get("max_position_embeddings")
        return int(value) if isinstance(value, int) and value > 0 else None

    @property
    def vocab_size(self) -> int:
        """Rows of the output head, padding rows included."""
        return self._vocab_size

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters as served."""
        from mlx.utils import tree_flatten

        return sum(array.nbytes for _, array in tree_flatten(self.model.parameters()))

    def new_native_cache(self) -> list[Any]:
        """Caches of mlx-lm's own kind, for a model that slot caches cannot serve."""
        return list(make_prompt_cache(self.model))

    def hidden(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
        """Final hidden states (after the last norm), ``(rows, width, hidden)``.

        Where the model cannot be split, its logits take their place.
        """
        if not self.split:
            return self._logits(tokens, caches)
        return self.body(tokens, cache=list(caches))  # type: ignore[no-any-return]

    def tap(self, after: Sequence[int]) -> None:
        """Have every pass keep the hidden states behind some layers for `tapped`.

        Parameters
        ----------
        after : sequence of int
            Behind how many layers, rising; replaces earlier ones, and none ends it.

        Raises
        ------
        LoadError
            This model has no such places, or its layers put out something else.
        """
        if self._taps is not None:
            self._taps.remove()
            self._taps = None
        if not after:
            return
        if not self.split:
            raise LoadError("the target cannot be split, so no hidden states of it can be read")
        self._taps = Taps(self.body.layers, after)
        self.body(mx.array([[1, 2]], dtype=mx.uint32))
        try:
            self._taps.take()
        except LoadError:
            self.tap(())
            raise

    def tapped(self) -> mx.array | None:
        """Hidden states of the last `hidden`, ``(rows, width, taps * hidden)``; given out once.

        ``None`` where nothing is tapped.
        """
        return None if self._taps is None else self._taps.take()

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits of hidden states, ``(rows, width, vocabulary)``."""
        return self._head(hidden) if self.split else hidden

    def _logits(self, tokens: mx.array, caches: Sequence[Any] | None) -> mx.array:
        return self.model(tokens, cache=None if caches is None else list(caches))  # type: ignore[no-any-return]

    def _head(self, hidden: mx.array) -> mx.array:
        core = self.core
        if hasattr(core, "lm_head") and not getattr(core, "tie_word_embeddings", False):
            out = core.lm_head(hidden)
        else:
            out = self.body.embed_tokens.as_linear(hidden)
        cap = getattr(core, "final_logit_softcapping", None)
        if cap is not None:
            out = mx.tanh(out / cap) * cap
        return out  # type: ignore[no-any-return]

    def _split_holds(self) -> bool:
        probe = mx.array([[1, 2]], dtype=mx.uint32)
        whole = self._logits(probe, None)
        self._vocab_size = int(whole.shape[-1])
        if self.body is None or not hasattr(self.body, "embed_tokens"):
            return False
        try:
            parts = self._head(self.body(probe))
            return parts.shape == whole.shape and bool(mx.allclose(parts, whole, 1e-3, 1e-3))
        except (AttributeError, TypeError, ValueError):
            return False


def cache_layout(model: nn.Module) -> CacheLayout:
    """Find out whether slot caches can serve a model.

    Parameters
    ----------
    model : nn.Module
        Model object of mlx-lm.

    Raises
    ------
    LoadError
        The model makes no caches at all.
    """
    caches = make_prompt_cache(model)
    if not caches:
        raise LoadError(f"{type(model).__module__}: the model makes no caches")
    windows: list[int | None] = []
    states: list[int] = []
    layers = list(getattr(model, "layers", ()))
    for at, cache in enumerate(caches):
        if len(layers) == len(caches) and is_recurrent(layers[at]):
            windows.append(None)
            states.append(at)
        elif type(cache) is KVCache:
            windows.append(None)
        elif type(cache) is RotatingKVCache and cache.keep == 0:
            windows.append(int(cache.max_size))
        else:
            kind = type(cache).__name__
            return CacheLayout(None, f"the model keeps a {kind}, which cannot be rewound")
    return CacheLayout(tuple(windows), states=tuple(states))
