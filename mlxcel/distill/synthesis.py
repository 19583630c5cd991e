"""The target writes its own training text, many rows in lockstep, all of it on the device.

All rows have the same length at every step, so no masks are needed. Tokens are chosen as
in decoding (noise keyed by row seed and position), so that a held-out row can be replayed
exactly. Key/value buffers have their final size from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.distill.script import ANSWER, FORCED, OVER, Scripts
from mlxcel.models.target import Target
from mlxcel.runtime.noise import gumbel, noise_keys

__all__ = [
    "FixedLayer",
    "Text",
    "Writer",
    "new_caches",
    "noise_scales",
    "row_seeds",
    "synthesise",
    "weights_of",
]

STEP = 256  # capacities are multiples: MLX's CUDA attention then takes cuDNN's decode path

Tick = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Rows of text.

    Attributes
    ----------
    tokens : uint32 or uint16 array, (rows, length)
        Token ids.
    kinds : uint8 array, (rows, length)
        What each token is: forced, user's turn, answer, or past the end.
    seeds : uint32 array, (rows, 2)
        Words of each row's noise seed.
    temperatures : float32 array, (rows,)
        Temperature of the answers.
    """

    tokens: npt.NDArray[Any]
    kinds: npt.NDArray[np.uint8]
    seeds: npt.NDArray[np.uint32]
    temperatures: npt.NDArray[np.float32]


class FixedLayer:
    """Key/value buffer of one layer with a fixed capacity; speaks mlx-lm's cache interface."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write a block ``(rows, kv_heads, width, head_dim)``; return all that is there."""
        if self.keys is None or self.values is None:
            rows, heads, _, size = keys.shape
            self.keys = mx.zeros((rows, heads, self.capacity, size), keys.dtype)
            self.values = mx.zeros((rows, heads, self.capacity, size), values.dtype)
        begin, end = self.offset, self.offset + int(keys.shape[2])
        self.keys[:, :, begin:end] = keys
        self.values[:, :, begin:end] = values
        self.offset = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def make_mask(self, n: int, **_: Any) -> str | None:
        """No mask for one token, causal for a block."""
        return None if n == 1 else "causal"


def new_caches(target: Target, length: int) -> list[FixedLayer]:
    """Empty buffers for rows of ``length`` tokens."""
    capacity = -(-length // STEP) * STEP
    return [FixedLayer(capacity) for _ in target.body.layers]


def row_seeds(seed: int, batch: int, rows: int) -> npt.NDArray[np.uint32]:
    """Noise seeds of the rows of a batch, uint32 ``(rows, 2)``."""
    rng = np.random.default_rng([seed, 2, batch])
    return rng.integers(0, 2**32, (rows, 2), dtype=np.uint32)


def weights_of(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Loss weights of tokens: 1 in answers, 0 elsewhere."""
    weights: npt.NDArray[np.float32] = (kinds == ANSWER).astype(np.float32)
    return weights


def noise_scales(temperatures: npt.NDArray[np.float32]) -> tuple[mx.array, mx.array]:
    """Factor of the logits and of the noise for each temperature, float32 of its shape."""
    greedy = temperatures <= 0
    scale = np.where(greedy, 1.0, 1.0 / np.where(greedy, 1.0, temperatures))
    return mx.array(scale.astype(np.float32)), mx.array((~greedy).astype(np.float32))


@mx.compile
def _choose(
    logits: mx.array, keys: mx.array, ids: mx.array, scale: mx.array, drawn: mx.array
) -> mx.array:
    noise = gumbel(keys, ids)[:, 0]
    return mx.argmax(logits.astype(mx.float32) * scale + noise * drawn, axis=-1)


class _State:
    """Device state of the rows: where each is in its script."""

    def __init__(
        self, scripts: Scripts, ends: list[int], seeds: npt.NDArray[np.uint32], longest: int
    ) -> None:
        arrays = scripts.arrays()
        self.script = mx.array(arrays["tokens"])
        self.starts, self.stops = mx.array(arrays["starts"]), mx.array(arrays["stops"])
        self.part_ends = mx.array(arrays["ends"])
        self.kinds = mx.array(arrays["kinds"])
        self.scales, self.drawn = noise_scales(arrays["temperatures"])
        self.seeds = mx.array(seeds)
        self.format_ends, self.longest = ends, longest
        rows = len(scripts)
        self.cursor = mx.ones((rows, 1), mx.int32)
        self.end = mx.array(arrays["first"])[:, None]
        self.event = mx.zeros((rows, 1), mx.int32)
        self.free = mx.zeros((rows, 1), mx.int32)  # tokens of the running free turn
        self.token = self.script[:, :1]
        self.kind = mx.full((rows, 1), FORCED, dtype=mx.uint8)

    def _at(self, table: mx.array) -> mx.array:
        index = mx.minimum(self.event, table.shape[1] - 1)
        return mx.take_along_axis(table, index, axis=1)

    def advance(self, logits: mx.array | None, position: int, ids: mx.array) -> None:
        """Choose the tokens at ``position``; without logits every row must be forced."""
        forced = self.cursor < self.end
        given = mx.take_along_axis(self.script, self.cursor, axis=1)
        self.cursor = self.cursor + forced.astype(mx.int32)
        if logits is None:
            self.token = given
            return
        keys = noise_keys(self.seeds, mx.full((self.seeds.shape[0], 1), position))
        chosen = _choose(logits, keys, ids, self._at(self.scales), self._at(self.drawn))
        chosen = chosen[:, None].astype(mx.uint32)
        stop = self._at(self.stops)
        kinds = self._at(self.kinds)
        cut = ~forced & (self.free >= self.longest - 1) & (kinds != OVER)
        stopping = mx.where(stop < 0, mx.array(self.format_ends[0], mx.int32), stop)
        chosen = mx.where(cut, stopping.astype(mx.uint32), chosen)
        self.token = mx.where(forced, given, chosen)
        self.kind = mx.where(forced | cut, mx.array(FORCED, mx.uint8), kinds)
        over = chosen.astype(mx.int32) == stop
        for end in self.format_ends:
            over = over | (chosen == end)
        over = over & ~forced & (self.event < self.starts.shape[1])
        self.free = mx.where(forced | over, mx.array(0), self.free + 1)
        self.cursor = mx.where(over, self._at(self.starts), self.cursor)
        self.end = mx.where(over, self._at(self.part_ends), self.end)
        self.event = self.event + over.astype(mx.int32)

    def pending(self) -> list[mx.array]:
        """Arrays that the next step needs."""
        return [self.token, self.kind, self.free, self.cursor, self.end, self.event]


def synthesise(
    target: Target,
    scripts: Scripts,
    *,
    length: int,
    seeds: npt.NDArray[np.uint32],
    temperatures: npt.NDArray[np.float32],
    ends: list[int],
    turn_tokens: int | None = None,
    tick: Tick | None = None,
) -> Text:
    """Let the target write rows of text.

    Parameters
    ----------
    target : Target
        The model, without sliding windows.
    scripts : Scripts
        What is forced on each row.
    length : int
        Tokens of every row.
    seeds : uint32 array, (rows, 2)
        Noise seeds.
    temperatures : float32 array, (rows,)
        Recorded in the result; the scripts decide.
    ends : list of int
        Ids that end any turn.
    turn_tokens : int, optional
        Longest free turn; the token that ends it is then forced.
    tick : callable, optional
        Called with the position and the length after each step.
    """
    writer = Writer(
        target, scripts, length=length, seeds=seeds, ends=ends, turn_tokens=turn_tokens
    )
    tokens, kinds = [writer.state.token], [writer.state.kind]
    for position in range(1, length):
        writer.step(position)
        tokens.append(writer.state.token)
        kinds.append(writer.state.kind)
        writer.wait()
        if tick is not None:
            tick(position, length)
    small = np.uint16 if target.vocab_size <= 2**16 else np.uint32
    return Text(
        tokens=np.array(mx.concatenate(tokens, axis=1)).astype(small),
        kinds=np.array(mx.concatenate(kinds, axis=1)),
        seeds=seeds,
        temperatures=temperatures,
    )


class Writer:
    """Rows being written; see `synthesise` for the parameters."""

    def __init__(
        self,
        target: Target,
        scripts: Scripts,
        *,
        length: int,
        seeds: npt.NDArray[np.uint32],
        ends: list[int],
        turn_tokens: int | None = None,
    ) -> None:
        self.state = _State(scripts, ends, seeds, turn_tokens or length)
        self.caches = new_caches(target, length)
        self._target = target
        self._ids = mx.arange(target.vocab_size, dtype=mx.uint32)
        self._free_from = int(scripts.arrays()["first"].min())

    def step(self, position: int) -> None:
        """Enqueue the choice of the tokens at ``position``, at least 1."""
        hidden = self._target.hidden(self.state.token, self.caches)
        free = position >= self._free_from
        logits = self._target.logits(hidden)[:, 0] if free else None
        self.state.advance(logits, position, self._ids)
        buffers = [b for c in self.caches for b in (c.keys, c.values) if b is not None]
        mx.async_eval(*self.state.pending(), *buffers)

    def wait(self) -> None:
        """Wait for the device: a buffer that a running step still reads would be copied by the
        next write, not written in place."""
        mx.eval(self.state.token)
        mx.synchronize()
