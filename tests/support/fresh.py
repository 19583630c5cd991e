"""A text read by mlx-lm alone, one token at a time: what caches must hold of it at any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache

from mlxcel.models.target import Target
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.state_cache import StateLayer

Array = np.ndarray[Any, Any]


def assert_close(found: Array, wanted: Array, scale: float, close: float, what: str) -> None:
    """Within ``close`` parts of ``scale``: a pass of many rows rounds otherwise than one of one."""
    assert found.shape == wanted.shape, what
    worst = float(np.abs(found - wanted).max(initial=0.0)) / scale
    assert worst <= close, f"{what}: {worst:.1e} of the largest value"


class FreshKeys:
    """Keys and values in the order of positions, ``(heads, tokens, head_dim)``.

    Parameters
    ----------
    cache : object
        One of mlx-lm's; what a layer writes into it is kept aside.
    """

    def __init__(self, cache: Any) -> None:
        self._parts: list[tuple[mx.array, mx.array]] = []
        self._joined: tuple[Array, Array] | None = None
        plain = cache.update_and_fetch

        def kept(keys: mx.array, values: mx.array) -> Any:
            self._parts.append((keys, values))
            return plain(keys, values)

        cache.update_and_fetch = kept

    def step(self) -> None:
        """A token has been read."""

    def joined(self) -> tuple[Array, Array]:
        """Keys and values of all tokens."""
        if self._joined is None:
            keys, values = (
                np.concatenate([np.array(part[at])[0] for part in self._parts], axis=1)
                for at in (0, 1)
            )
            self._joined = keys, values
        return self._joined

    def check(self, layer: Any, row: int, length: int, close: float) -> None:
        """All positions that a later query can see of the row's first ``length`` tokens.

        Of a window also the one before, which an assistant may be shown.
        """
        first = 0 if layer.window is None else max(0, length - layer.window)
        positions = np.arange(first, length)
        columns = positions if layer.ring is None else positions % layer.ring
        held = layer.keys, layer.values
        for what, found, wanted in zip(("keys", "values"), held, self.joined(), strict=True):
            assert_close(
                np.array(found)[row][:, columns], wanted[:, positions],
                float(np.abs(wanted).max()), close, f"{what} of {length} tokens",
            )  # fmt: skip


class FreshStates:
    """Window and memory of a recurrent layer after each token."""

    def __init__(self, cache: ArraysCache) -> None:
        self._cache = cache
        self._states: list[tuple[Array, Array]] = []

    def step(self) -> None:
        """A token has been read."""
        window, memory = self._cache.cache
        self._states.append((np.array(window)[0], np.array(memory)[0]))

    def check(self, layer: StateLayer, row: int, length: int, close: float) -> None:
        """The state that is held, which is the one before a block that may still be rejected."""
        assert layer.held is not None
        start = layer.start if isinstance(layer.start, int) else int(layer.start[row].item())
        pending = 0 if layer.block is None else int(layer.block.inputs.shape[1])
        assert start <= length <= start + pending, (start, length, pending)
        wanted = self._states[start - 1]
        for what, found, state in zip(("window", "memory"), layer.held, wanted, strict=True):
            assert_close(
                np.array(found)[row], state, float(np.abs(state).max()), close,
                f"{what} after {start} tokens",
            )  # fmt: skip


class Fresh:
    """A text and everything that reading it leaves behind.

    Parameters
    ----------
    target : Target
        The model; its own caches are used.
    prompt : sequence of int
        Its first tokens; the model goes on with its best guesses.
    count : int
        Tokens to be read.

    Attributes
    ----------
    tokens : list of int
        At least one more than have been read.
    hidden, features : array
        ``(count, n)``: final hidden states, and what a head reads of them.
    """

    def __init__(self, target: Target, prompt: Sequence[int], count: int) -> None:
        caches = target.new_native_cache()
        self.layers = [
            FreshStates(each) if isinstance(each, ArraysCache) else FreshKeys(each)
            for each in caches
        ]
        self.tokens = list(prompt)
        hidden, features = [], []
        for at in range(count):
            states = target.hidden(mx.array([self.tokens[at : at + 1]], mx.uint32), caches)
            tapped = target.tapped()
            if at + 1 == len(self.tokens):
                best = mx.argmax(target.logits(states)[0, 0])
                self.tokens.append(int(best.item()))
            hidden.append(np.array(states)[0, 0])
            features.append(hidden[-1] if tapped is None else np.array(tapped)[0, 0])
            for layer in self.layers:
                layer.step()
        self.hidden, self.features = np.stack(hidden), np.stack(features)

    def check(self, caches: SlotCache, row: int, length: int, close: float) -> None:
        """All that counts of a row that has read the text's first ``length`` tokens."""
        for layer, own in zip(caches.layers, self.layers, strict=True):
            own.check(layer, row, length, close)


class FreshHead:
    """What a head makes of a text, pair by pair, in a cache of mlx-lm's own.

    Attributes
    ----------
    keys : FreshKeys
        Of the head's layer.
    states : array
        ``(pairs, hidden)``: what the head puts out.
    """

    def __init__(self, head: Any, text: Fresh) -> None:
        cache = KVCache()
        self.keys = FreshKeys(cache)
        states = []
        for features, token in zip(text.features, text.tokens[1:], strict=False):
            hidden = head.reduce(mx.array(features)[None, None])
            pair = head.fuse(hidden, mx.array([[token]], mx.uint32))
            states.append(np.array(head.forward(pair, None, cache))[0, 0])
        self.states = np.stack(states)
