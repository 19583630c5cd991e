"""The width controller of one pairing: which widths it may choose, and what it remembers.

Who decides what (``docs/decisions/0008-width-controller.md``): exactness, override, policy and
gate say whether a burst runs at the pairing's width; the controller says how wide the rounds
of a burst that runs are, where the request did not name a width. While the policy profiles,
the width stays the pairing's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxcel.decide.exactness import VetoState
from mlxcel.decide.verdict import VerdictKey
from mlxcel.decide.width import WidthController
from mlxcel.decide.width_challenge import SERIES
from mlxcel.engine.verdict_store import VerdictStore

__all__ = ["FOLDER", "REACH", "SAVE_ROUNDS", "Steering"]

FOLDER = "mtp-width"
"""Of the cache folder: memories of width controllers, beside the policy's verdicts."""

REACH = 4
"""How far from the width that is held others are probed: a probe takes seconds."""

SAVE_ROUNDS = 64
"""Measured rounds after which the memory is written even if the same width is held."""


class Steering:
    """Owns a controller; not thread-safe.

    Parameters
    ----------
    start : int
        The pairing's width, already found exact.
    key : VerdictKey
        What the memory is valid for; its width is the widest block, as all widths are in it.
    store : VerdictStore
        Where it is kept.
    known : callable
        What has been found of a width's exactness, ``None`` if nothing; it must not probe.
    sequential : bool
        See `WidthController`.
    serial : bool
        Whether rounds wait for each other, so that each has a time of its own.
    """

    def __init__(
        self,
        start: int,
        key: VerdictKey,
        store: VerdictStore,
        known: Callable[[int], VetoState | None],
        *,
        sequential: bool,
        serial: bool,
    ) -> None:
        self.controller = WidthController(
            key.width, start, sequential=sequential, open=(), series=1 if serial else SERIES
        )
        self._key = key
        self._store = store
        for width in range(2, key.width + 1):
            found = known(width)
            if found is not None and width != start:
                self.judged(width, found.reason)
        store.restore(key, lambda text: self.controller.restore(text, key.digest))
        self._saved = (self.controller.holder, self.controller.rounds)

    def judged(self, width: int, veto: str) -> None:
        """A width has been probed; an empty ``veto`` lets it run."""
        if veto:
            self.controller.exclude(width, veto)
        elif width not in self.controller.arms:
            self.controller.allow(width)

    def wanted(self) -> int | None:
        """The width to be probed next: the nearest one to that held, the narrower of two."""
        arms, held = self.controller.arms, self.controller.holder
        untried = [
            width for width in range(max(held - REACH, 2), held + REACH + 1) if arms.untried(width)
        ]
        return min(untried, key=lambda width: abs(width - held), default=None)

    def save(self) -> None:
        """Write the memory, if it has changed by much."""
        holder, rounds = self._saved
        controller = self.controller
        if controller.holder != holder or controller.rounds - rounds >= SAVE_ROUNDS:
            self._saved = (controller.holder, controller.rounds)
            self._store.write(self._key, controller.to_json(self._key.digest))

    def snapshot(self) -> dict[str, Any]:
        """The controller's state; ``probing`` is the width that is probed when nothing runs."""
        return self.controller.snapshot() | {"probing": self.wanted()}
