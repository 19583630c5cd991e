"""What chooses widths for one pairing: bursts of one row, and rounds of several."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.decide.verdict import VerdictKey
from mlxcel.engine.load_steering import FOLDER as LOAD_FOLDER
from mlxcel.engine.load_steering import LoadSteering
from mlxcel.engine.steering import FOLDER, Steering
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.engine.vetoes import Vetoes

__all__ = ["Steerings"]


class Steerings:
    """Both, each made when it is first needed.

    Parameters
    ----------
    key : callable
        Key of the memories; its width is the widest block.
    store : VerdictStore
        Their folders lie beside it.
    vetoes : Vetoes
        What is known of exactness.
    sequential, serial : bool
        See `Steering`.

    Attributes
    ----------
    burst : Steering or None
        Of bursts of one row.
    crowd : LoadSteering or None
        Of rounds of several rows.
    """

    def __init__(
        self,
        key: Callable[[], VerdictKey],
        store: VerdictStore,
        vetoes: Vetoes,
        *,
        sequential: bool,
        serial: bool,
    ) -> None:
        self._key = key
        self._store = store
        self._vetoes = vetoes
        self._sequential, self._serial = sequential, serial
        self.burst: Steering | None = None
        self.crowd: LoadSteering | None = None

    def for_burst(self, width: int) -> Steering:
        """That of bursts, begun at the pairing's width, which was found exact."""
        if self.burst is None:
            self.burst = Steering(
                width, self._key(), self._store.beside(FOLDER), self._vetoes.remembered,
                sequential=self._sequential, serial=self._serial,
            )  # fmt: skip
        return self.burst

    def for_crowd(self, width: int) -> LoadSteering:
        """That of rounds of several rows, begun at the pairing's width."""
        if self.crowd is None:
            self.crowd = LoadSteering(
                width, self._key(), self._store.beside(LOAD_FOLDER), self._vetoes.remembered,
                serial=self._serial,
            )  # fmt: skip
        return self.crowd

    def judged(self, width: int, veto: str) -> None:
        """A width has been probed; an empty ``veto`` lets it run."""
        for each in (self.burst, self.crowd):
            if each is not None:
                each.judged(width, veto)

    def wanted(self) -> int | None:
        """The width to be probed next at rest, ``None`` if there is none."""
        width = None if self.burst is None else self.burst.wanted()
        return self.crowd.wanted() if width is None and self.crowd is not None else width

    def save(self) -> None:
        """Keep what they have learnt."""
        for each in (self.burst, self.crowd):
            if each is not None:
                each.save()
