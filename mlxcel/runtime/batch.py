"""The rows that decode together: their device state, and the verify pass over them.

A row's state is a bonus token (chosen, emitted, not yet fed), the token before it, a
length, and its part of the caches and of the sampler. All of it stays on the device, so
the next round can be enqueued before this one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxcel.models.target import Target
from mlxcel.runtime.caches import Caches, new_caches
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.sampling import Choice, RowSampler

__all__ = ["Batch", "Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """What a verify pass found, still on the device.

    Attributes
    ----------
    packed : mx.array
        uint32 ``(2, rows, width)``: the block that was fed, then the target's choices.
    choice : Choice
        The choices with what was asked about them.
    states : mx.array
        ``(rows, tokens, hidden)``, the target's final hidden states of all that was fed: the
        block, and the padding behind it.
    start, accepted : mx.array
        int32 ``(rows,)``: lengths before the pass, and drafts accepted in it.
    taps : mx.array or None
        ``(rows, tokens, taps * hidden)``, the hidden states that a drafter reads instead; see
        `Target.tap`.
    """

    packed: mx.array
    choice: Choice
    states: mx.array
    start: mx.array
    accepted: mx.array
    taps: mx.array | None = None

    @property
    def hidden(self) -> mx.array:
        """Final hidden states of the block, ``(rows, width, hidden)``."""
        return self._of_block(self.states)

    @property
    def features(self) -> mx.array:
        """What a head reads of the block: what was tapped, else the final hidden states."""
        return self._of_block(self.states if self.taps is None else self.taps)

    def _of_block(self, states: mx.array) -> mx.array:
        width = self.packed.shape[2]
        return states if states.shape[1] == width else states[:, :width]


class Batch:
    """Device state of all running rows of one target.

    Parameters
    ----------
    target : Target
        The model.
    slack : int
        Largest block of a round, in tokens.
    length_step : int
        Buffers grow by this many positions.
    """

    def __init__(self, target: Target, *, slack: int, length_step: int) -> None:
        self.target = target
        self.slack = slack
        self.length_step = length_step
        self.clear()

    def clear(self) -> None:
        """Drop all rows and their buffers."""
        self.caches: Caches = new_caches(
            self.target, slack=self.slack, length_step=self.length_step
        )
        self.rows = 0
        self.widest = 0  # tokens per row of the widest pass so far, with padding
        self.lengths = mx.zeros((0,), mx.int32)
        self.bonus = mx.zeros((0,), mx.uint32)
        self.previous = mx.zeros((0,), mx.uint32)
        self.sampler = RowSampler(self.target.vocab_size, [])

    def join(
        self,
        caches: Caches,
        sampler: RowSampler,
        *,
        length: int,
        bonus: mx.array,
        previous: int,
        at: int | None = None,
    ) -> None:
        """Add a prefilled row.

        Parameters
        ----------
        caches : Caches
            Caches of the row; taken over.
        sampler : RowSampler
            Its sampling state, history up to and with the bonus token.
        length : int
            Tokens in the caches.
        bonus : mx.array
            uint32 ``(1,)``, first output token.
        previous : int
            Last token in the caches.
        at : int, optional
            The row it comes before; below all others by default. Buffers are copied once
            either way, as by each `keep`.
        """
        at = self.rows if at is None else at
        self.caches.append(caches, at)
        self.sampler = self.sampler.joined(sampler)
        if at < self.rows:
            self.sampler = self.sampler.gathered([*range(at), self.rows, *range(at, self.rows)])

        def inserted(held: mx.array, new: mx.array) -> mx.array:
            return mx.concatenate([held[:at], new, held[at:]])

        self.lengths = inserted(self.lengths, mx.array([length], mx.int32))
        self.bonus = inserted(self.bonus, bonus.astype(mx.uint32))
        self.previous = inserted(self.previous, mx.array([previous], mx.uint32))
        self.rows += 1

    def keep(self, rows: Sequence[int], positions: int | None = None) -> None:
        """Keep only these rows, in this order; buffers may shrink to ``positions``."""
        if list(rows) == list(range(self.rows)):
            return
        if not rows:
            self.clear()
            return
        self.caches.gather(rows, positions)
        index = mx.array(list(rows), dtype=mx.int32)
        self.lengths, self.bonus = self.lengths[index], self.bonus[index]
        self.previous = self.previous[index]
        self.sampler = self.sampler.gathered(rows)
        self.rows = len(rows)

    def frame(self, width: int, *, bound: int, exact: int | None) -> Frame:
        """Frame of a block that begins at each row's length.

        Parameters
        ----------
        width : int
            Tokens per row.
        bound : int
            Upper bound of length + width over the rows.
        exact : int or None
            Length of the only row, if the host knows it.
        """
        if exact is not None and self.rows == 1:
            return Frame.exact(exact, width)
        return Frame(self.lengths, width, bound)

    def verify(
        self,
        drafts: mx.array | None,
        widths: Sequence[int],
        *,
        bound: int,
        exact: int | None = None,
        pad_to: int = 0,
    ) -> Check:
        """Run the target over bonus and drafts; accept on the device; advance the rows.

        Padding comes after the block, so nothing in it sees the padding. What the padding
        leaves in the caches lies past every accepted prefix, like a rejected draft, and the
        next block overwrites it. None of it is chosen from, recorded or handed on.

        Parameters
        ----------
        drafts : mx.array or None
            uint32 ``(rows, width - 1)``; ``None`` for a classic step.
        widths : sequence of int
            Width of each row; drafts beyond it are never accepted.
        bound, exact
            As for `frame`, with the padding.
        pad_to : int
            Tokens per row to feed; 0 feeds the block alone.

        Raises
        ------
        ValueError
            The block is wider than ``pad_to``, or that is more than the caches have room for.
        """
        bonus = self.bonus[:, None]
        block = bonus if drafts is None else mx.concatenate([bonus, drafts], axis=1)
        width = int(block.shape[1])
        fed = self._padded(block, pad_to) if pad_to else block
        self.widest = max(self.widest, int(fed.shape[1]))
        frame = self.frame(fed.shape[1], bound=bound, exact=exact)
        self.caches.frame = frame
        states = self.target.hidden(fed, self.caches.layers)
        taps = self.target.tapped()
        # Choices are made of padding too, so that they also have the shape of the pass.
        choice = self.sampler.choose(self.target.logits(states), fed, frame.positions() + 1)
        choice = choice.first(width)
        start = self.lengths
        accepted = self._advance(block, choice.tokens, widths)
        return Check(mx.stack([block, choice.tokens]), choice, states, start, accepted, taps)

    def _padded(self, block: mx.array, tokens: int) -> mx.array:
        """The block with its bonus token again behind it; any token would do."""
        missing = tokens - int(block.shape[1])
        if missing < 0 or tokens > self.slack:
            raise ValueError(
                f"a block of {block.shape[1]} tokens cannot be padded to {tokens}; the caches "
                f"have room for {self.slack}"
            )
        if not missing:
            return block
        tail = mx.broadcast_to(block[:, :1], (block.shape[0], missing))
        return mx.concatenate([block, tail], axis=1)

    def _advance(self, block: mx.array, choices: mx.array, widths: Sequence[int]) -> mx.array:
        """Move every row past its accepted drafts; return how many those are."""
        if block.shape[1] == 1:
            accepted = mx.zeros((self.rows,), mx.int32)
            self.previous, self.bonus = self.bonus, choices[:, 0]
        else:
            accepted = count_accepted(block, choices, mx.array(list(widths), dtype=mx.int32))
            last = accepted[:, None]
            self.bonus = mx.take_along_axis(choices, last, axis=1)[:, 0]
            self.previous = mx.take_along_axis(block, last, axis=1)[:, 0]
        self.lengths = self.lengths + accepted + 1
        self.sampler.record(choices, accepted + 1)
        return accepted

    def pending(self) -> list[mx.array]:
        """Arrays to be evaluated so that nothing of the state stays a graph."""
        state = [self.lengths, self.bonus, self.previous, *self.caches.state]
        if self.sampler.counts is not None:
            state.append(self.sampler.counts)
        return state


def count_accepted(block: mx.array, choices: mx.array, widths: mx.array) -> mx.array:
    """Count the drafts of each row that the target would have chosen itself.

    Parameters
    ----------
    block, choices : mx.array
        uint32 ``(rows, width)``: ``block[:, j + 1]`` is the draft for ``choices[:, j]``.
    widths : mx.array
        int32 ``(rows,)``; at most width - 1 drafts of a row count.

    Returns
    -------
    mx.array
        int32 ``(rows,)``, length of the matching prefix.
    """
    steps = mx.arange(block.shape[1] - 1, dtype=mx.int32)[None]
    match = (block[:, 1:] == choices[:, :-1]) & (steps < (widths - 1)[:, None])
    return mx.sum(mx.cumprod(match.astype(mx.int32), axis=1), axis=1)
