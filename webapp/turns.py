"""A turn of a conversation: its prompt, its budget, and the calls in what the model writes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.errors import RequestError
from webapp.engine import Holder, holder
from webapp.errors import ApiError
from webapp.limits import budget
from webapp.tools import Part, Splitter, call_form

__all__ = ["Call", "Turn", "check_choices"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model makes."""

    id: str
    name: str
    arguments: dict[str, Any]


def check_choices(count: int, name: str = "n") -> int:
    """The number of answers, if so many may be asked for.

    Raises
    ------
    ApiError
        400: names both numbers.
    """
    most = holder().config.max_choices
    if count > most:
        raise ApiError(400, f"{name} asks for {count} answers, the limit is {most}", param=name)
    return count


class Turn:
    """What the model is given, and how its answer is read.

    Parameters
    ----------
    messages : list of dict
        As chat templates take them.
    tools : list of dict
        What may be called.
    must_call : bool
        Whether the answer has to be a call: it then begins with the model's own mark of one.

    Raises
    ------
    MlxcelError
        The template refuses the messages, or there is none.
    ApiError
        400: the model's form of calls is not known.
    """

    def __init__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, must_call: bool
    ) -> None:
        self._holder: Holder = holder()
        front = self._holder.front
        self._facts = front.facts
        self._tools = tools
        self._form = call_form(self._facts) if tools else None
        self._must_call = must_call and self._form is not None
        ids: Sequence[int] = front.encode(messages, tools=tools)
        self.prompt_ids = tuple(ids)
        if self._must_call and self._form is not None:
            self.prompt_ids += tuple(self._form["start_ids"])

    def budget(self, asked: int | None, name: str) -> int:
        """Tokens that the answer may have; see `webapp.limits.budget`."""
        config = self._holder.config
        return budget(
            asked, config.default_tokens, len(self.prompt_ids), self._facts["context"], config, name
        )

    def splitter(self) -> Splitter | None:
        """Reads an answer; ``None`` where it is all text."""
        if self._form is None:
            return None
        return Splitter(self._form["start"], self._form["end"], inside=self._must_call)

    def parts(self, splitter: Splitter | None, text: str, ended: bool) -> Iterator[str | Call]:
        """Texts and calls in the next piece of an answer.

        Parameters
        ----------
        splitter : Splitter or None
            That of the answer.
        text : str
            The piece.
        ended : bool
            Whether it is the last.
        """
        if splitter is None:
            if text:
                yield text
            return
        for part in splitter.feed(text):
            yield from self._read(splitter, part)
        if ended:
            for part in splitter.finish():
                yield from self._read(splitter, part)

    def _read(self, splitter: Splitter, part: Part) -> Iterator[str | Call]:
        kind, text = part
        if kind == "text":
            yield text
            return
        try:
            found = self._holder.front.parse_tool_call(text, self._tools)
        except RequestError:  # it only looked like one, or the budget cut it: it stays text
            end = self._form["end"] if self._form and kind == "call" else ""
            yield f"{splitter.start}{text}{end}"
            return
        for call in found:
            yield Call(f"call_{secrets.token_hex(12)}", call["name"], call["arguments"])
