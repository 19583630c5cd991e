"""Tells calls from text in what a model writes, as it writes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from webapp.errors import ApiError

__all__ = ["Part", "Splitter", "call_form"]

Part = tuple[Literal["text", "call", "cut"], str]
"""Text, a whole call without its marks, or a call that the end of the answer cut."""


def call_form(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the model writes calls.

    Raises
    ------
    ApiError
        400: nobody knows.
    """
    form = facts.get("tool_calls")
    if not form:
        raise ApiError(
            400,
            f"the model {facts['model']} has no form of tool calls that is known here: leave tools "
            "out",
            param="tools",
        )
    assert isinstance(form, Mapping)
    return form


class Splitter:
    """Finds calls between their marks.

    Parameters
    ----------
    start, end : str
        The marks; without an end, a call goes on to the next start or the end of the answer.
    inside : bool
        Whether the answer begins within a call.
    """

    def __init__(self, start: str, end: str, *, inside: bool = False) -> None:
        self._start, self._end = start, end
        self._inside = inside
        self._held = ""

    @property
    def start(self) -> str:
        """The mark before a call."""
        return self._start

    def feed(self, text: str) -> list[Part]:
        """Take text; return what is certain by now."""
        self._held += text
        found: list[Part] = []
        while part := self._next():
            found += [part] if part[1].strip() or part[0] == "text" else []
        return [part for part in found if part[1]]

    def finish(self) -> list[Part]:
        """The answer has ended: return what was held back."""
        held, self._held = self._held, ""
        if not self._inside:
            return [("text", held)] if held else []
        return [("call" if not self._end else "cut", held)]

    def _next(self) -> Part | None:
        mark = (self._end or self._start) if self._inside else self._start
        at = self._held.find(mark)
        if at >= 0:
            part, self._held = self._held[:at], self._held[at + len(mark) :]
            was, self._inside = self._inside, not self._inside or not self._end
            return ("call" if was else "text", part)
        if self._inside:
            return None
        keep = _overlap(self._held, mark)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        return ("text", ready) if ready else None


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of a text that may begin a mark."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
