"""What is known of a target's exactness by block width, and how more is found out."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mlxcel.config import Settings
from mlxcel.decide.exactness import VetoState, unprobed, veto_of
from mlxcel.decide.rows import RowRule
from mlxcel.engine.exactness import exactness_of, kept_exactness
from mlxcel.hardware.host import describe
from mlxcel.runtime.loader import LoadedModel

__all__ = ["Interrupted", "Known", "Probe", "Vetoes", "probes_of"]

Interrupted = Callable[[], bool]
Probe = Callable[..., VetoState]
Known = Callable[[int], VetoState | None]


class Vetoes:
    """Answers by width, each found out once.

    Parameters
    ----------
    probe : callable
        Exactness at a width: probed, or remembered. At rest it is also given ``interrupted``
        and raises `ProbeInterrupted` where that says so.
    known : callable
        Exactness at a width where it is remembered, else ``None``; probes nothing.
    """

    def __init__(self, probe: Probe, known: Known) -> None:
        self._probe = probe
        self._known = known
        self._found: dict[int, VetoState] = {}

    def of(self, width: int) -> VetoState:
        """Exactness at a width; probes if need be."""
        if width not in self._found:
            self._found[width] = self._probe(width)
        return self._found[width]

    def found(self, width: int) -> VetoState | None:
        """What has been asked about a width in this process; looks nowhere else."""
        return self._found.get(width)

    def remembered(self, width: int) -> VetoState | None:
        """The same without a probe."""
        found = self._found.get(width) or self._known(width)
        if found is not None:
            self._found[width] = found
        return found

    def at_rest(self, width: int, interrupted: Interrupted) -> VetoState:
        """Probe a width while nothing else is to be done.

        Raises
        ------
        ProbeInterrupted
            There is by now.
        """
        found = self._found[width] = self._probe(width, interrupted)
        return found


def probes_of(
    model: LoadedModel, settings: Settings, rule: Callable[[], RowRule]
) -> tuple[Probe, Known]:
    """The two callables of `Vetoes` for a target on this host; ``rule`` as for the engine."""
    required = settings.mtp_exactness
    host = functools.cache(describe)

    def probe(width: int, interrupted: Interrupted = bool) -> VetoState:
        if required == "off":
            return veto_of(unprobed(width, "MLXCEL_MTP_EXACTNESS=off"), required)
        found = exactness_of(
            model, width, settings, rule=rule(), host=host(), interrupted=interrupted
        )
        return veto_of(found, required)

    def known(width: int) -> VetoState | None:
        if required == "off":
            return probe(width)
        found = kept_exactness(model, width, settings, rule=rule(), host=host())
        return None if found is None else veto_of(found, required)

    return probe, known
