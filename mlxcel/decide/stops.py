"""Finding stop texts in a stream without ever showing a part of one."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Holds back text that could be the beginning of a stop text.

    Parameters
    ----------
    stops : sequence of str
        Non-empty texts. The first to be complete ends the text; where several are
        complete at once, the one that begins first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text; return what may be shown now.

        Once a stop text is complete, ``stopped`` is true, what stood before it has been
        returned, and everything after it is dropped.
        """
        if self.stopped:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found = min((at for stop in self._stops if (at := held.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            self._held = ""
            return held[:found]
        begun = self._first_beginning(held)
        self._held = held[begun:]
        return held[:begun]

    def flush(self) -> str:
        """Return what is held back: the text has ended without completing a stop."""
        held, self._held = self._held, ""
        return held

    def _first_beginning(self, text: str) -> int:
        """Return the first place where ``text`` ends inside a stop text, or its length."""
        longest = max(len(stop) for stop in self._stops) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)
