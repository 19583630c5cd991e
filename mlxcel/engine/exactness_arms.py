"""The two arms of the exactness probe: the same tokens as a block and as single steps.

Both run through the batch and the slot caches that decoding uses, on caches of their own,
so that a fault of those is found as well as a difference between kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.config import Settings
from mlxcel.decide.exactness import Draw, Position
from mlxcel.decide.rows import RowRule
from mlxcel.models.target import Target
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.sampling import RowSampler
from mlxcel.types import SamplingParams

__all__ = ["Arm", "LayerRecorder", "Pair", "Seen", "first_layer", "uncached"]

Floats = npt.NDArray[np.float32]


class LayerRecorder:
    """Keeps what each layer of a target puts out, while its `active` block lasts."""

    def __init__(self, target: Target) -> None:
        layers = getattr(target.body, "layers", None) or []
        self._index = {id(layer): at for at, layer in enumerate(layers)}
        self._types = {type(layer) for layer in layers}
        self._found: dict[int, mx.array] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record within this block; nothing else may run the model meanwhile."""
        plain: dict[type, Any] = {kind: kind.__call__ for kind in self._types}
        try:
            for kind, call in plain.items():
                kind.__call__ = self._wrapped(call)  # type: ignore[method-assign]
            yield
        finally:
            for kind, call in plain.items():
                kind.__call__ = call  # type: ignore[method-assign]

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(layer: Any, *args: Any, **kwargs: Any) -> Any:
            out = call(layer, *args, **kwargs)
            at = self._index.get(id(layer))
            if at is not None:
                self._found[at] = out[0] if isinstance(out, tuple) else out
            return out

        return recorded

    def take(self, width: int | None = None) -> list[Floats]:
        """Outputs of the last pass, by layer, ``(width, hidden)``; the first ``width`` if given."""
        found = [_host(self._found[at])[0, :width] for at in sorted(self._found)]
        self._found = {}
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What came out of one or more passes over consecutive positions.

    Attributes
    ----------
    logits : array
        float32 ``(positions, vocabulary)``.
    choices : tuple of int
        Tokens chosen.
    layers : list of array
        Outputs by layer, ``(positions, hidden)``; empty unless recorded.
    accepted : int
        Drafts accepted, for a block.
    """

    logits: Floats
    choices: tuple[int, ...]
    layers: list[Floats] = field(default_factory=list)
    accepted: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Seen]) -> Seen:
        """Passes one after the other."""
        return cls(
            np.concatenate([part.logits for part in parts]),
            tuple(token for part in parts for token in part.choices),
            [np.concatenate(rows) for rows in zip(*(p.layers for p in parts), strict=True)],
        )

    def first(self, count: int) -> Seen:
        """The first positions only."""
        rows = [layer[:count] for layer in self.layers]
        return Seen(self.logits[:count], self.choices[:count], rows, self.accepted)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms over the same positions."""

    name: str
    start: int
    steps: Seen
    block: Seen
    fault: str = ""
    gross_only: bool = False

    def draw(self) -> Draw:
        """Figures of all positions."""
        rows = zip(
            self.steps.logits, self.block.logits, self.steps.choices, self.block.choices,
            strict=True,
        )  # fmt: skip
        positions = tuple(_position(a, b, x == y) for a, b, x, y in rows)
        return Draw(
            name=self.name,
            start=self.start,
            positions=positions,
            fault=self.fault,
            gross_only=self.gross_only,
        )


class Arm:
    """One row with caches of its own, prefilled with a prompt as the engine does it.

    Parameters
    ----------
    target : Target
        The model.
    settings : Settings
        Steps and sizes of the caches.
    prompt : sequence of int
        Token ids.
    rule : RowRule
        How passes are padded.
    recorder : LayerRecorder, optional
        Keeps the outputs of the layers too.
    """

    def __init__(
        self,
        target: Target,
        settings: Settings,
        prompt: Sequence[int],
        rule: RowRule,
        recorder: LayerRecorder | None = None,
    ) -> None:
        self._rule = rule
        # As if a request had been admitted that comes to so many tokens.
        self._reserved = len(prompt) + 4 * settings.max_width
        sizes: dict[str, Any] = {"slack": settings.max_width, "length_step": settings.length_step}
        prefill = Prefill(target, prompt, chunk=settings.prefill_chunk, **sizes)
        while not prefill.complete:
            prefill.advance()
        mx.eval(prefill.hidden, *prefill.caches.state)
        self.batch = Batch(target, **sizes)
        sampler = RowSampler.for_prompt(
            target.vocab_size, SamplingParams(temperature=0.0, seed=0), prompt
        )
        self.batch.join(
            prefill.caches,
            sampler,
            length=len(prompt),
            bonus=mx.array([prompt[-1]], mx.uint32),
            previous=prompt[-1],
        )
        self._recorder = recorder
        if recorder is not None:
            recorder.take()
        self.length = len(prompt)

    def step(self, token: int) -> Seen:
        """Feed one token, whatever was chosen before it, as classic decode does."""
        self.batch.bonus = mx.array([token], mx.uint32)
        seen = self._seen(self._verify(None, 1, bound=self.length + 1, exact=self.length))
        self.length += 1
        return seen

    def steps(self, tokens: Sequence[int]) -> Seen:
        """Feed tokens one by one."""
        return Seen.joined([self.step(token) for token in tokens])

    def block(self, tokens: Sequence[int], *, ragged: bool, bonus: bool = True) -> Seen:
        """Feed tokens as one verify.

        Parameters
        ----------
        tokens : sequence of int
            The bonus token and the drafts.
        ragged : bool
            As in a pipelined round, whose length is known on the device only; the host's
            bound is then too high by a whole block, as it is when a draft was rejected.
        bonus : bool
            Whether the first token replaces the one the round before has chosen.
        """
        width = len(tokens)
        if bonus:
            self.batch.bonus = mx.array([tokens[0]], mx.uint32)
        drafts = mx.array([list(tokens[1:])], dtype=mx.uint32)
        exact, bound = self.length, self.length + width
        check = self._verify(
            drafts,
            width,
            bound=bound + width if ragged else bound,
            exact=None if ragged else exact,
        )
        seen = self._seen(check)
        self.length += seen.accepted + 1
        return seen

    def _verify(
        self, drafts: mx.array | None, width: int, *, bound: int, exact: int | None
    ) -> Check:
        shape = self._rule.shape(1, width, bound=bound, exact=exact, reserved=self._reserved)
        return self.batch.verify(
            drafts, [width], bound=shape.bound, exact=shape.exact, pad_to=shape.tokens
        )

    def _seen(self, check: Check) -> Seen:
        mx.eval(check.packed, check.accepted, *self.batch.pending())
        width = int(check.packed.shape[2])
        logits = self.batch.target.logits(check.states)
        return Seen(
            _host(logits)[0, :width],
            tuple(np.array(check.packed)[1, 0].tolist()),
            [] if self._recorder is None else self._recorder.take(width),
            int(np.array(check.accepted)[0]),
        )


def uncached(
    target: Target,
    settings: Settings,
    tokens: Sequence[int],
    last: int,
    recorder: LayerRecorder | None = None,
) -> Seen:
    """The last positions of a text, read with the model's own caches and not with ours."""
    caches = target.new_native_cache()
    rows = mx.array([list(tokens)], dtype=mx.uint32)
    for begin in range(0, len(tokens) - last, settings.prefill_chunk):
        end = min(begin + settings.prefill_chunk, len(tokens) - last)
        mx.eval(target.hidden(rows[:, begin:end], caches))
    if recorder is not None:
        recorder.take()
    logits = _host(target.logits(target.hidden(rows[:, -last:], caches)))[0]
    layers = [] if recorder is None else recorder.take()
    return Seen(logits, tuple(np.argmax(logits, axis=-1).tolist()), layers)


def first_layer(steps: Seen, block: Seen, tolerance: float) -> tuple[int | None, float]:
    """First layer in which two runs differ by more than rounding, else at all.

    Parameters
    ----------
    steps, block : Seen
        With recorded layers.
    tolerance : float
        Difference that rounding explains, in parts of the layer's largest value.

    Returns
    -------
    int or None
        The layer, from 0; ``None`` where no layer differs.
    float
        Its largest difference in parts of its largest value.
    """
    found: tuple[int | None, float] = (None, 0.0)
    for at, (a, b) in enumerate(zip(steps.layers, block.layers, strict=True)):
        if a.tobytes() == b.tobytes():
            continue
        difference, largest = np.max(np.abs(a - b)), np.max(np.abs(a))
        part = float(difference / largest) if largest > 0 else float("inf")
        if not part <= tolerance:
            return at, part if np.isfinite(part) else 1e30
        if found[0] is None:
            found = (at, part)
    return found


def _position(steps: Floats, block: Floats, same_choice: bool) -> Position:
    with np.errstate(invalid="ignore"):
        gaps = np.where(steps == block, 0.0, np.abs(steps - block))
    finite = steps[np.isfinite(steps)]
    broken = bool(np.isnan(steps).any() or np.isnan(block).any() or not finite.size)
    return Position(
        difference=float("inf") if broken else float(np.max(gaps)),
        margin=0.0 if broken else min(_margin(steps), _margin(block)),
        same_choice=same_choice,
        same_bits=not broken and steps.tobytes() == block.tobytes(),
        scale=0.0 if broken else float(finite.max() - finite.min()),
    )


def _margin(logits: Floats) -> float:
    best = np.partition(logits, -2)[-2:]
    return float(best[1] - best[0])


def _host(array: mx.array) -> Floats:
    """A copy on the host; float32 holds every half-precision value exactly."""
    return np.array(array.astype(mx.float32))
