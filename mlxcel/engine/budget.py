"""The byte budget: which requests fit into memory together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mlxcel.config import Settings
from mlxcel.decide.cache_cost import CacheCost, LayerCost
from mlxcel.engine.drafting import Drafter
from mlxcel.engine.sequence import RequestState
from mlxcel.errors import CapacityError
from mlxcel.models.target import Target
from mlxcel.runtime.cache_cost import position_bytes

__all__ = ["Budget"]


class Budget:
    """Bytes of caches that running requests may take.

    Every request is booked with all it may ever need (prompt, ``max_tokens`` and the blocks
    past the end), so one that has been admitted never runs out of memory later.

    Parameters
    ----------
    target : Target
        The model.
    drafter : Drafter or None
        Its caches count too.
    settings : Settings
        ``cache_bytes``, ``None`` for no limit, and the steps of the buffers.
    """

    def __init__(self, target: Target, drafter: Drafter | None, settings: Settings) -> None:
        self.ceiling = settings.cache_bytes
        self._target = target
        self._drafter = drafter
        self._settings = settings

    @functools.cached_property
    def cost(self) -> CacheCost:
        """Bytes by tokens; built when first needed."""
        slack, step = self._settings.max_width, self._settings.length_step
        layers = position_bytes(self._target, slack=slack, length_step=step)
        if self._drafter is not None:
            layers += self._drafter.position_bytes()
        costs = tuple(LayerCost(*each) for each in layers)
        # A round in flight may end where the request does, and the next one begins there.
        return CacheCost(layers=costs, slack=2 * slack, step=step)

    def bytes_of(self, states: Sequence[RequestState]) -> int:
        """Bytes of these requests decoding together."""
        return self.cost.bytes_of([state.reserved for state in states])

    def fits(self, states: Sequence[RequestState]) -> bool:
        """Whether these requests may run together."""
        return self.ceiling is None or self.bytes_of(states) <= self.ceiling

    def check(self, state: RequestState) -> None:
        """Refuse a request that would not fit alone.

        Raises
        ------
        CapacityError
            Names both numbers.
        """
        if self.fits([state]):
            return
        prompt, output = len(state.request.prompt_ids), state.params.max_tokens
        raise CapacityError(
            f"prompt of {prompt} tokens and max_tokens {output} take "
            f"{self.bytes_of([state]):,} bytes of caches, more than the {self.ceiling:,} that "
            "MLXCEL_CACHE_BYTES allows: ask for fewer tokens, or raise it",
            param="max_tokens",
        )
