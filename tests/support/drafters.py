"""Drafters that only tests need."""

from __future__ import annotations

import mlx.core as mx

from mlxcel.config import Settings
from mlxcel.engine.drafters import Drafter, LookupDrafter, ModelDrafter
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.draft import DraftModel
from mlxcel.runtime.loader import LoadedModel


class LiarDrafter(ModelDrafter):
    """Knows the target's choice and proposes the next id, so every draft is wrong."""

    def alter(self, tokens: mx.array, batch: Batch) -> mx.array:
        return (tokens + 1) % batch.target.vocab_size


class MixedDrafter(ModelDrafter):
    """Wrong at every third position of a block."""

    def alter(self, tokens: mx.array, batch: Batch) -> mx.array:
        wrong = (mx.arange(tokens.shape[1]) % 3 == 2)[None]
        return mx.where(wrong, (tokens + 1) % batch.target.vocab_size, tokens)


def self_chain(model: LoadedModel, settings: Settings) -> DraftModel:
    """The target itself as draft model, with caches of its own."""
    return DraftModel(
        model.target, slack=settings.max_width, length_step=settings.length_step
    )


def make(name: str, model: LoadedModel, settings: Settings) -> Drafter:
    """Make a drafter by name."""
    if name == "lookup":
        return LookupDrafter(settings.max_rows + 1)
    kinds = {"self": ModelDrafter, "liar": LiarDrafter, "mixed": MixedDrafter}
    return kinds[name](self_chain(model, settings), kind=name)
