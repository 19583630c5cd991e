"""One row with a filled cache, on which passes are repeated from the same length.

`SlotRow` runs the engine's own passes (`mlxcel.runtime.batch.Batch`). `NativeRow` is for models
with recurrent layers, whose state has no length that could be put back: it runs mlx-lm's caches,
and after a verify the state before it is put back by reference, so the replay of accepted tokens
is not in its cost.

A verify accepts nothing here, whatever was drafted: the acceptance is computed as always, but no
draft may count, so lengths advance by one and all rounds of a sample have one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from mlxcel.errors import LoadError
from mlxcel.models.target import Target
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.caches import new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.runtime.sampling import RowSampler
from mlxcel.types import SamplingParams

__all__ = ["CostRow", "NativeRow", "SlotRow", "row_of"]


class CostRow(Protocol):
    """A row that can be put back to its first length.

    Attributes
    ----------
    target : Target
        The model.
    kind : {"slot", "native"}
        Its caches.
    bonus : mx.array
        uint32 ``(1,)``, the token to be fed next.
    hidden : mx.array
        ``(1, width, size)``, final hidden states of the last block.
    choices : mx.array
        uint32 ``(1, width)``, what the target chose in it.
    """

    target: Target
    kind: str
    hidden: mx.array
    choices: mx.array

    @property
    def bonus(self) -> mx.array:
        """See the class."""

    def rewind(self, length: int) -> None:
        """Go on from this length."""

    def classic(self) -> mx.array:
        """Enqueue nothing, build a classic step; returns what is read of it."""

    def verify(self, width: int, tokens: int, drafts: mx.array) -> mx.array:
        """Build a verify of drafts ``(1, width - 1)`` that is fed ``tokens`` tokens."""

    def pending(self) -> list[mx.array]:
        """Arrays to be evaluated with a pass."""

    def frame(self, tokens: int) -> list[Any]:
        """Caches by layer, ready for the attention of a block of so many tokens."""

    def release(self, tokens: int) -> None:
        """Forget a block that was written through `frame`."""

    def columns(self, tokens: int) -> int:
        """Positions that a full layer reads in a verify."""


def row_of(target: Target, context: int, *, widest: int, length_step: int) -> CostRow:
    """Make a row with ``context`` made-up tokens in its caches.

    Parameters
    ----------
    target : Target
        The model.
    context : int
        Tokens in the caches.
    widest : int
        Most tokens that a pass is fed.
    length_step : int
        As for the engine's caches.
    """
    if target.layout.windows is None or target.layout.states:
        return NativeRow(target, context)
    return SlotRow(target, context, widest=widest, length_step=length_step)


class SlotRow:
    """See the module.

    Attributes
    ----------
    batch : Batch
        The row as the engine has it.
    check : Check or None
        Of the last verify.
    """

    kind = "slot"

    def __init__(self, target: Target, context: int, *, widest: int, length_step: int) -> None:
        self.target = target
        self.batch = Batch(target, slack=widest, length_step=length_step)
        caches = new_caches(target, slack=widest, length_step=length_step)
        assert isinstance(caches, SlotCache)
        shapes = _layer_shapes(target, widest, length_step)
        caches.frame = Frame.exact(0, context)
        for layer, (shape, dtype) in zip(caches.layers, shapes, strict=True):
            keys, values = (_noise((*shape[:2], context, shape[3]), dtype) for _ in range(2))
            layer.update_and_fetch(keys, values)
        mx.eval(caches.state)
        params = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        sampler = RowSampler(target.vocab_size, [params])
        bonus = mx.array([1], mx.uint32)
        self.batch.join(caches, sampler, length=context, bonus=bonus, previous=1)
        self._length = context
        self.check: Check | None = None
        self.hidden = mx.zeros((1, 1, int(target.text_config["hidden_size"])))
        self.choices = bonus[None]

    @property
    def bonus(self) -> mx.array:
        """See `CostRow`."""
        return self.batch.bonus

    def rewind(self, length: int) -> None:
        """See `CostRow`."""
        self._length = length
        self.batch.lengths = mx.array([length], mx.int32)

    def classic(self) -> mx.array:
        """See `CostRow`; as the engine decodes a single row whose length it knows."""
        check = self.batch.verify(None, [1], bound=self._length + 1, exact=self._length)
        self._length += 1
        self.hidden, self.choices = check.states, check.choice.tokens
        return check.packed

    def verify(self, width: int, tokens: int, drafts: mx.array) -> mx.array:
        """See `CostRow`; the length is on the device, as after any round that drafted."""
        check = self.batch.verify(
            drafts if width > 1 else None, [1], bound=self.bound(tokens), pad_to=tokens
        )
        self._length += 1
        self.check = check
        self.hidden, self.choices = check.hidden, check.choice.tokens
        return check.packed

    def bound(self, tokens: int) -> int:
        """What the engine knows while the round before is unread: it may have accepted all."""
        return self._length + 2 * tokens - 1

    def pending(self) -> list[mx.array]:
        """See `CostRow`."""
        return [*self.batch.pending(), self.hidden]

    def frame(self, tokens: int) -> list[Any]:
        """See `CostRow`."""
        caches = self.batch.caches
        caches.frame = self.batch.frame(tokens, bound=self.bound(tokens), exact=None)
        return caches.layers

    def release(self, tokens: int) -> None:
        """See `CostRow`; what lies past the length is overwritten."""

    def columns(self, tokens: int) -> int:
        """See `CostRow`."""
        caches = self.batch.caches
        assert isinstance(caches, SlotCache)
        span = caches.span_step
        return -(-self.bound(tokens) // span) * span


class NativeRow:
    """See the module."""

    kind = "native"

    def __init__(self, target: Target, context: int) -> None:
        self.target = target
        self.caches = target.new_native_cache()
        target.hidden(mx.array([[1]], mx.uint32), self.caches)
        for at, cache in enumerate(self.caches):
            if type(cache) is KVCache:
                shape, dtype = cache.keys.shape, cache.keys.dtype
                self.caches[at] = filled = KVCache()
                shape = (*shape[:2], context, shape[3])
                filled.update_and_fetch(_noise(shape, dtype), _noise(shape, dtype))
            elif not isinstance(cache, ArraysCache):
                raise LoadError(
                    f"the model keeps a {type(cache).__name__}, whose state cannot be put back; "
                    "its cost cannot be measured"
                )
        self._context = context
        mx.eval(self.pending())
        self._first = self._states()
        self.bonus = mx.array([1], mx.uint32)
        self.hidden = mx.zeros((1, 1, int(target.text_config["hidden_size"])))
        self.choices = self.bonus[None]

    def _states(self) -> list[list[Any] | None]:
        """References to recurrent states; mlx-lm replaces those arrays and never changes them."""
        return [list(c.cache) if isinstance(c, ArraysCache) else None for c in self.caches]

    def _put_back(self, states: Sequence[list[Any] | None], tokens: int) -> None:
        for cache, state in zip(self.caches, states, strict=True):
            if state is None:
                cache.trim(tokens)
            else:
                cache.cache = list(state)

    def rewind(self, length: int) -> None:
        """See `CostRow`."""
        for cache, state in zip(self.caches, self._first, strict=True):
            if state is None:
                cache.offset = min(length, int(cache.keys.shape[2]))
            else:
                cache.cache = list(state)

    def classic(self) -> mx.array:
        """See `CostRow`."""
        return self._pass(self.bonus[None], 1)

    def verify(self, width: int, tokens: int, drafts: mx.array) -> mx.array:
        """See `CostRow`."""
        block = [self.bonus[None]] + ([drafts] if width > 1 else [])
        if tokens > width:
            block.append(mx.broadcast_to(self.bonus[None], (1, tokens - width)))
        before = self._states()
        packed = self._pass(mx.concatenate(block, axis=1), width)
        self._put_back(before, tokens)
        return packed

    def _pass(self, block: mx.array, width: int) -> mx.array:
        hidden = self.target.hidden(block, self.caches)
        choices = mx.argmax(self.target.logits(hidden), axis=-1)
        self.hidden, self.choices = hidden[:, :width], choices[:, :width]
        self.bonus = choices[:, 0]
        return mx.stack([block[:, :width], self.choices])

    def pending(self) -> list[mx.array]:
        """See `CostRow`."""
        states = [array for state in self._states() for array in state or []]
        keys = [a for c in self.caches if isinstance(c, KVCache) for a in (c.keys, c.values)]
        return [*states, *keys]

    def frame(self, tokens: int) -> list[Any]:
        """See `CostRow`."""
        self.rewind(self._context)
        return self.caches

    def release(self, tokens: int) -> None:
        """See `CostRow`."""
        self.rewind(self._context)

    def columns(self, tokens: int) -> int:
        """See `CostRow`."""
        return self._context + tokens


def _layer_shapes(
    target: Target, widest: int, length_step: int
) -> list[tuple[tuple[int, ...], mx.Dtype]]:
    """Shape and type of each layer's keys, from a pass that is never evaluated."""
    caches = new_caches(target, slack=widest, length_step=length_step)
    caches.frame = Frame.exact(0, 1)
    target.hidden(mx.array([[1]], mx.uint32), caches.layers)
    return [(layer.keys.shape, layer.keys.dtype) for layer in caches.layers]


def _noise(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape).astype(dtype)
