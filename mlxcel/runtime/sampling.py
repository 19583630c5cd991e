"""Choosing tokens: penalties, bias, temperature, filters and position-keyed noise.

Everything is vectorised over rows and block positions and stays in the graph; no choice
needs the host. Row parameters are device arrays, and a `Recipe` says which stages some row
needs, so that a greedy batch pays for an argmax only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxcel.runtime.noise import gumbel, noise_keys, seed_words
from mlxcel.types import SamplingParams

__all__ = ["Choice", "Recipe", "RowSampler"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Stages that at least one row needs; static for a graph."""

    sampled: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalised: bool = False
    biased: bool = False
    logprobs: int = -1  # -1: none, n: the chosen one and the n best

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> Recipe:
        """Combine what the rows ask for."""
        drawn = [p for p in params if not p.greedy]
        return cls(
            sampled=bool(drawn),
            top_k=any(p.top_k > 0 for p in drawn),
            top_p=any(p.top_p < 1.0 for p in drawn),
            min_p=any(p.min_p > 0.0 for p in drawn),
            penalised=any(p.penalised for p in params),
            biased=any(bool(p.logit_bias) for p in params),
            logprobs=max((-1 if p.logprobs is None else p.logprobs for p in params), default=-1),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Chosen tokens of a block, and what was asked about them.

    Attributes
    ----------
    tokens : mx.array
        uint32 ``(rows, width)``.
    logprobs : mx.array or None
        float32 ``(rows, width, 1 + n)``: of the chosen token, then of the n best.
    top_ids : mx.array or None
        uint32 ``(rows, width, n)``, best first.
    """

    tokens: mx.array
    logprobs: mx.array | None = None
    top_ids: mx.array | None = None

    def first(self, width: int) -> Choice:
        """Those of the first positions only."""
        if width == self.tokens.shape[1]:
            return self
        return Choice(
            self.tokens[:, :width],
            None if self.logprobs is None else self.logprobs[:, :width],
            None if self.top_ids is None else self.top_ids[:, :width],
        )


class RowSampler:
    """Sampling state of the rows of a batch.

    Parameters
    ----------
    vocab_size : int
        Width of the logits.
    params : sequence of SamplingParams
        One per row; seeds must be set.
    seen : mx.array, optional
        bool ``(rows, 1, vocabulary)``, tokens of the prompts; only where penalties need it.
    counts : mx.array, optional
        float32 ``(rows, 1, vocabulary)``, occurrences in the outputs so far.
    """

    def __init__(
        self,
        vocab_size: int,
        params: Sequence[SamplingParams],
        seen: mx.array | None = None,
        counts: mx.array | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.params = list(params)
        self.recipe = Recipe.of(self.params)
        self.seen = seen if self.recipe.penalised else None
        self.counts = counts if self.recipe.penalised else None
        self._ids = mx.arange(vocab_size, dtype=mx.uint32)
        self._load_rows()

    @classmethod
    def for_prompt(
        cls, vocab_size: int, params: SamplingParams, prompt: Sequence[int]
    ) -> RowSampler:
        """Sampling state of a single row whose history is a prompt."""
        if not params.penalised:
            return cls(vocab_size, [params])
        seen = np.zeros((1, 1, vocab_size), dtype=np.bool_)
        seen[0, 0, np.asarray(prompt, dtype=np.int64)] = True
        counts = mx.zeros((1, 1, vocab_size), mx.float32)
        return cls(vocab_size, [params], mx.array(seen), counts)

    def gathered(self, rows: Sequence[int]) -> RowSampler:
        """State of some rows, in this order."""
        index = mx.array(list(rows), dtype=mx.int32)
        return RowSampler(
            self.vocab_size,
            [self.params[row] for row in rows],
            None if self.seen is None else self.seen[index],
            None if self.counts is None else self.counts[index],
        )

    def joined(self, other: RowSampler) -> RowSampler:
        """State of these rows and another's below them."""
        params = [*self.params, *other.params]
        if self.seen is None and other.seen is None:
            return RowSampler(self.vocab_size, params)
        parts = [part._history() for part in (self, other)]
        return RowSampler(
            self.vocab_size,
            params,
            mx.concatenate([seen for seen, _ in parts]),
            mx.concatenate([counts for _, counts in parts]),
        )

    def _history(self) -> tuple[mx.array, mx.array]:
        """History arrays; rows that need none have neutral penalties, so zeros serve."""
        shape = (len(self.params), 1, self.vocab_size)
        seen = mx.zeros(shape, mx.bool_) if self.seen is None else self.seen
        counts = mx.zeros(shape, mx.float32) if self.counts is None else self.counts
        return seen, counts

    def _load_rows(self) -> None:
        rows = self.params
        seeds = [seed_words(p.seed or 0) for p in rows]
        self.seeds = mx.array(np.array(seeds, dtype=np.uint32).reshape(len(rows), 2))

        def column(values: list[float]) -> mx.array:
            return mx.array(np.array(values, dtype=np.float32).reshape(-1, 1, 1))

        self.drawn = column([0.0 if p.greedy else 1.0 for p in rows])
        self.scale = column([1.0 if p.greedy else 1.0 / p.temperature for p in rows])
        vocab = self.vocab_size
        keep_k = [vocab if p.greedy or p.top_k == 0 else min(p.top_k, vocab) for p in rows]
        self.top_k = mx.array(np.array(keep_k, dtype=np.int32).reshape(-1, 1, 1))
        self.top_p = column([1.0 if p.greedy else p.top_p for p in rows])
        self.min_p = column([0.0 if p.greedy else p.min_p for p in rows])
        self.repetition = column([p.repetition_penalty for p in rows])
        self.presence = column([p.presence_penalty for p in rows])
        self.frequency = column([p.frequency_penalty for p in rows])
        self.bias: mx.array | None = None
        if self.recipe.biased:
            bias = np.zeros((len(rows), 1, vocab), dtype=np.float32)
            for row, p in enumerate(rows):
                for token, value in p.logit_bias.items():
                    bias[row, 0, token] = value
            self.bias = mx.array(bias)

    def choose(self, logits: mx.array, block: mx.array, positions: mx.array) -> Choice:
        """Choose a token at every position of a block.

        Parameters
        ----------
        logits : mx.array
            ``(rows, width, vocabulary)``, row j given the block up to j.
        block : mx.array
            uint32 ``(rows, width)``, the tokens that were fed; the first is in the history.
        positions : mx.array
            int32 ``(rows, width)``, absolute positions of the chosen tokens.
        """
        recipe = self.recipe
        if recipe == Recipe():
            return Choice(mx.argmax(logits, axis=-1))
        logits = self._adjusted(logits.astype(mx.float32), block)
        scored = logits
        if recipe.sampled:
            scored = self._filtered(logits * self.scale)
            scored = scored + self._noise(positions, self._ids)
        tokens = mx.argmax(scored, axis=-1)
        if recipe.logprobs < 0:
            return Choice(tokens)
        return self._with_logprobs(logits, tokens)

    def propose(
        self, logits: mx.array, fed: mx.array, positions: mx.array, ids: mx.array | None = None
    ) -> mx.array:
        """Choose a draft with the request's own penalties, bias, temperature and noise.

        Parameters
        ----------
        logits : mx.array
            The drafter's, ``(rows, 1, vocabulary)``.
        fed : mx.array
            uint32 ``(rows, n)``, the block so far: bonus token and earlier drafts.
        positions : mx.array
            int32 ``(rows, 1)``, absolute positions of the drafts.
        ids : mx.array, optional
            uint32 ``(n,)``, or ``(rows, 1, n)`` where rows differ: the token ids that the
            logits belong to, if not all.

        Returns
        -------
        mx.array
            uint32 ``(rows, 1)``.
        """
        recipe = self.recipe
        if recipe.biased or recipe.penalised:
            logits = self._adjusted(logits.astype(mx.float32), fed, ids)
        if recipe.sampled:
            noise = self._noise(positions, self._ids if ids is None else ids)
            logits = logits.astype(mx.float32) * self.scale + noise
        best = mx.argmax(logits, axis=-1)
        return best if ids is None else _of_ids(best, ids)

    def _noise(self, positions: mx.array, ids: mx.array) -> mx.array:
        return gumbel(noise_keys(self.seeds, positions), ids) * self.drawn

    def record(self, tokens: mx.array, taken: mx.array) -> None:
        """Add emitted tokens to the history.

        Parameters
        ----------
        tokens : mx.array
            uint32 ``(rows, width)``.
        taken : mx.array
            int32 ``(rows,)``, how many of each row's tokens were emitted.
        """
        if self.counts is None or self.seen is None:
            return
        steps = mx.arange(tokens.shape[1])[None]
        weight = (steps < taken[:, None]).astype(mx.float32)
        self.counts = self.counts + self._added(tokens, weight)[:, -1:]

    def _added(self, tokens: mx.array, weight: mx.array) -> mx.array:
        """Running counts ``(rows, width, vocabulary)`` of the block's tokens so far."""
        rows, width = tokens.shape
        grid = mx.zeros((rows, width, self.vocab_size), mx.float32)
        at = tokens[..., None].astype(mx.int32)
        grid = mx.put_along_axis(grid, at, weight[..., None], axis=2)
        return mx.cumsum(grid, axis=1)

    def _adjusted(
        self, logits: mx.array, block: mx.array, ids: mx.array | None = None
    ) -> mx.array:
        """Apply penalties with the true history at every position, then bias.

        ``logits`` belong to the last positions of ``block``, and to ``ids`` if given.
        """

        def of(table: mx.array) -> mx.array:
            if ids is None or ids.ndim == 1:
                return table if ids is None else mx.take(table, ids, axis=-1)
            return mx.take_along_axis(table, ids.astype(mx.int32), axis=-1)

        if self.counts is not None and self.seen is not None:
            counts = self.counts
            width = block.shape[1]
            if width > 1:
                inside = mx.broadcast_to(mx.arange(width)[None] > 0, block.shape)
                added = self._added(block, inside.astype(mx.float32))
                counts = counts + added[:, -logits.shape[1] :]
            counts = of(counts)
            made = counts > 0
            repeated = mx.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = mx.where(made | of(self.seen), repeated, logits)
            logits = logits - self.frequency * counts - self.presence * made.astype(mx.float32)
        if self.bias is not None:
            logits = logits + of(self.bias)
        return logits

    def _filtered(self, scaled: mx.array) -> mx.array:
        """Hide tokens outside top-k, then top-p, then min-p; ties at a border stay."""
        recipe = self.recipe
        if recipe.top_k or recipe.top_p:
            best = -mx.sort(-scaled, axis=-1)
            kept = self.top_k
            if recipe.top_p:
                inside = mx.arange(self.vocab_size, dtype=mx.int32) < kept
                masses = mx.softmax(mx.where(inside, best, -mx.inf), axis=-1, precise=True)
                before = mx.cumsum(masses, axis=-1) - masses
                nucleus = mx.sum(before < self.top_p, axis=-1, keepdims=True).astype(mx.int32)
                kept = mx.where(self.top_p < 1.0, mx.minimum(kept, mx.maximum(nucleus, 1)), kept)
            kept = mx.broadcast_to(kept, (*scaled.shape[:2], 1))
            border = mx.take_along_axis(best, kept - 1, axis=-1)
            scaled = mx.where(scaled >= border, scaled, -mx.inf)
        if recipe.min_p:
            top = mx.max(scaled, axis=-1, keepdims=True)
            floor = top + mx.log(mx.maximum(self.min_p, 1e-38))
            hidden = (scaled < floor) & (self.min_p > 0)
            scaled = mx.where(hidden, -mx.inf, scaled)
        return scaled

    def _with_logprobs(self, logits: mx.array, tokens: mx.array) -> Choice:
        normal = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(normal, tokens[..., None].astype(mx.int32), axis=-1)
        n = min(self.recipe.logprobs, self.vocab_size)
        if n == 0:
            return Choice(tokens, chosen)
        ids = mx.argpartition(-normal, kth=n - 1, axis=-1)[..., :n]
        best = mx.take_along_axis(normal, ids, axis=-1)
        order = mx.argsort(-best, axis=-1)
        ids = mx.take_along_axis(ids, order, axis=-1)
        best = mx.take_along_axis(best, order, axis=-1)
        return Choice(tokens, mx.concatenate([chosen, best], axis=-1), ids.astype(mx.uint32))


def _of_ids(places: mx.array, ids: mx.array) -> mx.array:
    """Ids ``(rows, 1)`` at these places of a list of ids, one for all rows or one per row."""
    if ids.ndim == 1:
        return ids[places]
    return mx.take_along_axis(ids, places[..., None].astype(mx.int32), axis=-1)[..., 0]
