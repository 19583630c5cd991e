"""Which widths may run at the moment: those found exact, within what a request asks for."""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.errors import ConfigError

__all__ = ["WidthArms"]


class WidthArms:
    """All widths of a controller, and which of them are open.

    Parameters
    ----------
    widths : sequence of int
        All arms, ascending.
    open : sequence of int
        Those that may run from the beginning.

    Attributes
    ----------
    excluded : dict of int to str
        Widths that must not run, with the reason.

    Raises
    ------
    ConfigError
        An open width that is no arm.
    """

    def __init__(self, widths: Sequence[int], open: Sequence[int]) -> None:
        self.widths = tuple(widths)
        self.excluded: dict[int, str] = {}
        self._open = set(open)
        if strange := self._open.difference(self.widths):
            raise ConfigError(f"open widths {sorted(strange)} are not of {list(self.widths)}")
        self._within: dict[int, tuple[int, ...]] = {}

    def __contains__(self, width: int) -> bool:
        """Whether a width may run."""
        return width in self._open

    def allow(self, width: int) -> None:
        """Open a width; one that is no arm stays none."""
        if width in self.widths:
            self.excluded.pop(width, None)
            self._open.add(width)
            self._within.clear()

    def exclude(self, width: int, reason: str) -> None:
        """Close a width for a reason that is shown; classic decode cannot be closed."""
        if width > 1 and width in self.widths:
            self.excluded[width] = reason
            self._open.discard(width)
            self._within.clear()

    def untried(self, width: int) -> bool:
        """Whether nobody has said yet that a width may or must not run."""
        return width in self.widths and width not in self._open and width not in self.excluded

    def within(self, least: int) -> tuple[int, ...]:
        """Open widths from ``least`` on, ascending."""
        found = self._within.get(least)
        if found is None:
            found = tuple(width for width in self.widths if width in self._open and width >= least)
            self._within[least] = found
        return found
