"""Gated DeltaNet layers over caches that can bring a state back to any length of a block.

The layer (Yang et al. 2025, "Gated Delta Networks", equation 10) folds every token into one
matrix per head, so a rejected draft cannot be hidden by a shorter length as a key can. What a
block has put in is kept instead, and the part of it that was accepted is put in again when the
next pass begins: `replayed`. The projections, which are nearly all of the layer's work, are not.

With any other cache, and with none, these layers are mlx-lm's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk

__all__ = ["Block", "State", "StateCache", "is_recurrent", "replayed", "use_state_caches"]

_NEVER = -1e4
"""Of decay and strength: exp(-exp(A) softplus(x)) is then exactly 1 and sigmoid(x) exactly 0, so a
token leaves the state as it is; half precision holds the number."""


class State(NamedTuple):
    """What a layer knows of a row's text.

    Attributes
    ----------
    window : mx.array
        ``(rows, kernel - 1, channels)``, the last inputs of the convolution.
    memory : mx.array
        float32 ``(rows, value_heads, value_dim, key_dim)``.
    """

    window: mx.array
    memory: mx.array


class Block(NamedTuple):
    """What the tokens of a block put into a layer; axis 0 is rows and axis 1 tokens.

    Attributes
    ----------
    inputs : mx.array
        ``(rows, width, channels)``, of the convolution.
    keys : mx.array
        ``(rows, width, key_heads, key_dim)``, normed.
    values : mx.array
        ``(rows, width, value_heads, value_dim)``.
    decay, strength : mx.array
        ``(rows, width, value_heads)``, before their activations.
    """

    inputs: mx.array
    keys: mx.array
    values: mx.array
    decay: mx.array
    strength: mx.array


class StateCache(ABC):
    """Cache of one such layer, for all rows."""

    @abstractmethod
    def recall(self, layer: Any) -> State | None:
        """State before the block in flight; ``None`` where nothing has been read."""

    @abstractmethod
    def keep(self, before: State, block: Block, after: State) -> None:
        """Take in a pass: the state before it, what it put in, and the state after all of it."""


def replayed(
    layer: Any,
    state: State,
    block: Block,
    count: int | mx.array,
    used: mx.array | None = None,
    window: mx.array | None = None,
) -> State:
    """State after the first tokens of a block.

    Parameters
    ----------
    layer : nn.Module
        The layer that made the block.
    state : State
        Before the block.
    block : Block
        What it put in.
    count : int or mx.array
        Tokens that stay, at least one; int32 ``(rows,)`` where rows differ, and then also:
    used : mx.array, optional
        bool ``(rows, width, 1)``: which tokens those are.
    window : mx.array, optional
        int32 ``(rows, kernel - 1, 1)``: the last tokens of each row that stay, in state and block.

    Returns
    -------
    State
        The same numbers as single steps give, where a projection's row does not depend on how
        many rows are computed with it.
    """
    inputs = mx.concatenate([state.window, block.inputs], axis=1)
    if isinstance(count, int):
        keys, values, decay, strength = (part[:, :count] for part in block[1:])
        held = mx.contiguous(inputs[:, count : count + state.window.shape[1]])
    else:
        if used is None or window is None:
            raise ValueError("rows that differ need to be told which tokens stay")
        keys, values = block.keys, block.values
        decay = mx.where(used, block.decay, _NEVER)
        strength = mx.where(used, block.strength, _NEVER)
        held = mx.take_along_axis(inputs, window, axis=1)
    return State(held, _folded(layer, state.memory, keys, values, decay, strength))


def _folded(
    layer: Any,
    memory: mx.array,
    keys: mx.array,
    values: mx.array,
    decay: mx.array,
    strength: mx.array,
) -> mx.array:
    """Memory after these tokens; what they read out of it is left out."""
    on_metal = mx.default_device() == mx.gpu and mx.metal.is_available()
    if on_metal and keys.shape[-1] % 32 == 0:
        # One kernel for all tokens, the one that single steps take. Keys stand for queries.
        _, memory = gated_delta_update(
            keys, keys, values, decay, strength, layer.A_log, layer.dt_bias, memory
        )
        return memory
    width, group = int(keys.shape[1]), values.shape[2] // keys.shape[2]
    parts = (
        mx.repeat(keys, group, axis=2)[..., None, :],
        values[..., None],
        compute_g(layer.A_log, decay, layer.dt_bias)[..., None, None],
        mx.sigmoid(strength)[..., None, None],
    )
    tokens = zip(*(mx.split(part, width, axis=1) for part in parts), strict=True)
    memory = memory[:, None]  # a token of a part keeps its axis, so that it need not be squeezed
    for token in tokens:
        memory = _fold(memory, *token)
    return memory[:, 0]


@mx.compile
def _fold(
    memory: mx.array, key: mx.array, value: mx.array, decay: mx.array, strength: mx.array
) -> mx.array:
    """One token, in the operations and the order of mlx-lm's step."""
    memory = memory * decay
    delta = (value - (memory * key).sum(axis=-1, keepdims=True)) * strength
    return memory + key * delta


class _OverStates(nn.Module):
    """What both kinds of the layer share; mixed into mlx-lm's classes."""

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None
    ) -> mx.array:
        """Transform ``(rows, width, dims)``; ``cache`` as mlx-lm's, or a `StateCache`."""
        if not isinstance(cache, StateCache):
            return super().__call__(inputs, mask, cache)  # type: ignore[no-any-return]
        rows, width, _ = inputs.shape
        mixed, gate, decay, strength = self._projected(inputs)
        before = cache.recall(self) or self._empty(rows, inputs.dtype)
        fed = mx.concatenate([before.window, mixed], axis=1)
        out = nn.silu(self.conv1d(fed))
        queries, keys, values = mx.split(out, [self.key_dim, 2 * self.key_dim], axis=-1)
        queries, keys = normalize_qk(
            queries.reshape(rows, width, self.num_k_heads, -1),
            keys.reshape(rows, width, self.num_k_heads, -1),
            inv_scale=self.head_k_dim**-0.5,
            eps=1e-6,
        )
        values = values.reshape(rows, width, self.num_v_heads, -1)
        read, memory = gated_delta_update(
            queries, keys, values, decay, strength, self.A_log, self.dt_bias, before.memory
        )
        after = State(mx.contiguous(fed[:, width:]), memory)
        cache.keep(before, Block(mixed, keys, values, decay, strength), after)
        return self.out_proj(self.norm(read, gate).reshape(rows, width, -1))  # type: ignore[no-any-return]

    def _projected(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Input of the convolution, gate of the output, decay and strength."""
        raise NotImplementedError

    def _empty(self, rows: int, dtype: mx.Dtype) -> State:
        kernel, heads = self.conv_kernel_size, self.num_v_heads
        return State(
            mx.zeros((rows, kernel - 1, self.conv_dim), dtype),
            mx.zeros((rows, heads, self.head_v_dim, self.head_k_dim), mx.float32),
        )


class _Qwen35(_OverStates, qwen3_5.GatedDeltaNet):
    def _projected(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        gate = self.in_proj_z(x).reshape(*x.shape[:2], self.num_v_heads, self.head_v_dim)
        return self.in_proj_qkv(x), gate, self.in_proj_a(x), self.in_proj_b(x)


class _Qwen3Next(_OverStates, qwen3_next.Qwen3NextGatedDeltaNet):
    def _projected(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        queries, keys, values, gate, strength, decay = self.fix_query_key_value_ordering(
            self.in_proj_qkvz(x), self.in_proj_ba(x)
        )
        parts = [part.reshape(*x.shape[:2], -1) for part in (queries, keys, values)]
        return mx.concatenate(parts, axis=-1), gate, decay, strength


_KINDS: dict[type, type] = {
    qwen3_5.GatedDeltaNet: _Qwen35,
    qwen3_next.Qwen3NextGatedDeltaNet: _Qwen3Next,
}


def is_recurrent(layer: Any) -> bool:
    """Whether a decoder layer has a state that these caches can hold."""
    inner = getattr(layer, "linear_attn", None)
    return type(inner) in _KINDS or isinstance(inner, _OverStates)


def use_state_caches(model: nn.Module) -> int:
    """Make the recurrent layers of a model take a `StateCache`, in place; weights are shared.

    Returns
    -------
    int
        Layers changed; those that take one already stay.
    """
    changed = 0
    for _, module in model.named_modules():
        inner = module.get("linear_attn") if isinstance(module, nn.Module) else None
        if type(inner) in _KINDS:
            module.linear_attn = _over_states(inner)
            changed += 1
    return changed


def _over_states(inner: Any) -> nn.Module:
    """The same module, of the class that takes a state cache."""
    kind: Any = _KINDS[type(inner)]
    made: Any = kind.__new__(kind)
    made.__dict__.update(vars(inner))
    dict.update(made, inner)
    return made
