"""What is forced on a row of self-written text, and when: pure host work with numpy.

A row alternates between forced tokens (chat template, given prompts) and free ones. When a
free turn ends, the row's next *event* says which part of its script is forced next and what
the free tokens after it are: a user's turn, an answer, or nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxcel.errors import ConfigError, LoadError

__all__ = ["ANSWER", "FORCED", "OVER", "USER", "ChatFormat", "Scripts", "read_prompts"]

FORCED, USER, ANSWER, OVER = 0, 1, 2, 3
USER_TEMPERATURE = 1.0  # greedy user turns would all be the same

Ids = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Token pieces of a conversation.

    Attributes
    ----------
    opening : list of int
        Before the first user turn (or before plain text).
    to_answer, to_user : list of int
        Between a user turn and its answer, and between an answer and the next user turn; the
        first token of each is the one that ends the turn. Empty for plain text.
    ends : list of int
        Other ids that end a turn.
    """

    opening: Ids
    to_answer: Ids
    to_user: Ids
    ends: Ids

    @property
    def chat(self) -> bool:
        """Whether there are turns at all."""
        return bool(self.to_answer)

    @classmethod
    def of(cls, tokenizer: Any) -> ChatFormat:
        """Take a tokenizer's chat template apart; plain text where it has none."""
        ends = sorted(int(end) for end in tokenizer.eos_token_ids)
        if not tokenizer.has_chat_template:
            first = getattr(tokenizer, "bos_token_id", None)
            opening = [int(first)] if first is not None else ends[:1] or [0]
            return cls(opening=opening, to_answer=[], to_user=[], ends=ends)
        marks = ("USER-ONE", "ANSWER-ONE", "USER-TWO")
        roles = ("user", "assistant", "user")
        messages = [{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        pieces, rest = [], text
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                raise LoadError("the chat template does not repeat what the user says")
            pieces.append(encode(tokenizer, before))
        if not pieces[1] or not pieces[2]:
            raise LoadError("the chat template does not mark where turns end")
        return cls(opening=pieces[0], to_answer=pieces[1], to_user=pieces[2], ends=ends)


def encode(tokenizer: Any, text: str) -> Ids:
    """Token ids of a text without special tokens added."""
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file: one per line, or JSON lines with a string, ``prompt`` or ``text``.

    Raises
    ------
    LoadError, ConfigError
        The file cannot be read, a line is no prompt, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompts.append(_prompt(path, number, line) if path.suffix == ".jsonl" else line.strip())
    if not prompts:
        raise ConfigError(f"{path}: holds no prompt", param="prompts")
    return prompts


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}: line {number} is not JSON: {error}", param="prompts") from error
    if isinstance(value, dict):
        value = value.get("prompt", value.get("text"))
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{path}: line {number} has no prompt or text", param="prompts")
    return value.strip()


class Scripts:
    """Scripts of all rows of a batch, as arrays.

    Attributes
    ----------
    tokens : uint32 array, (rows, longest)
        Forced tokens of each row, part after part.
    starts, ends : int32 array, (rows, events)
        Part that is forced once a free turn has ended for the n-th time.
    stops : int32 array, (rows, events)
        Token that ends the n-th free turn; -1 where only the format's ends do.
    kinds : uint8 array, (rows, events + 1)
        What the n-th free turn is.
    temperatures : float32 array, (rows, events + 1)
        Its temperature.
    first : int32 array, (rows,)
        Forced tokens at the beginning of each row.
    """

    def __init__(self) -> None:
        self._tokens: list[Ids] = []
        self._parts: list[list[tuple[int, int, int]]] = []
        self._free: list[list[tuple[int, float]]] = []
        self._first: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, first: Ids, turns: Iterable[tuple[int, float, int, Ids]]) -> None:
        """Add a row.

        Parameters
        ----------
        first : list of int
            Forced at the beginning; at least one token.
        turns : iterable of (int, float, int, list of int)
            Free turns: kind, temperature, token that ends it (-1: none), and what is forced
            after it. The row is over after the last.
        """
        tokens, parts, free = list(first), [], []
        known: dict[tuple[int, ...], int] = {}
        for kind, temperature, stop, part in turns:
            key = tuple(part)
            if key not in known:
                known[key] = len(tokens)
                tokens += part
            parts.append((known[key], known[key] + len(part), stop))
            free.append((kind, temperature))
        self._tokens.append(tokens)
        self._parts.append(parts)
        self._free.append([*free, (OVER, 1.0)])
        self._first.append(len(first))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays described above, by name."""
        rows = len(self)
        events = max(1, max(len(parts) for parts in self._parts))
        tokens = np.zeros((rows, max(map(len, self._tokens)) + 1), np.uint32)
        table = np.zeros((rows, events, 3), np.int32)
        kinds = np.full((rows, events + 1), OVER, np.uint8)
        temperatures = np.ones((rows, events + 1), np.float32)
        for row in range(rows):
            tokens[row, : len(self._tokens[row])] = self._tokens[row]
            for event, part in enumerate(self._parts[row]):
                table[row, event] = part
            for event, (kind, temperature) in enumerate(self._free[row]):
                kinds[row, event], temperatures[row, event] = kind, temperature
        return {
            "tokens": tokens, "starts": table[..., 0], "ends": table[..., 1],
            "stops": table[..., 2], "kinds": kinds, "temperatures": temperatures,
            "first": np.array(self._first, np.int32),
        }  # fmt: skip

    def add_conversations(
        self, form: ChatFormat, temperature: float, exchanges: int, count: int
    ) -> None:
        """Conversations of some exchanges, one after the other, in which the target writes both
        sides."""
        user = (USER, USER_TEMPERATURE, form.to_answer[0], form.to_answer[1:])
        answer = (ANSWER, temperature, form.to_user[0], form.to_user[1:])
        last = (ANSWER, temperature, form.to_user[0], form.opening)
        self.add(form.opening, ([user, answer] * (exchanges - 1) + [user, last]) * count)

    def add_answers(
        self, form: ChatFormat, temperature: float, prompts: Sequence[Ids], exchanges: int = 1
    ) -> None:
        """Conversations of some exchanges whose user turns are given; over after the last."""
        first, *later = prompts
        stop = form.to_user[0]
        turns = []
        for place, prompt in enumerate(later, 1):
            between = form.to_user[1:] if place % exchanges else form.opening
            turns.append((ANSWER, temperature, stop, between + prompt + form.to_answer))
        self.add(form.opening + first + form.to_answer, [*turns, (ANSWER, temperature, stop, [])])

    def add_begun(
        self, form: ChatFormat, temperature: float, starts: Sequence[Ids], exchanges: int = 1
    ) -> None:
        """Conversations of some exchanges, each begun by a given start that the target continues
        as the user."""
        user = (USER, USER_TEMPERATURE, form.to_answer[0], form.to_answer[1:])
        answer = (ANSWER, temperature, form.to_user[0], form.to_user[1:])
        turns = []
        for start in [*starts[1:], []]:
            between = form.opening + start if start else []
            last = (ANSWER, temperature, form.to_user[0], between)
            turns += [user, answer] * (exchanges - 1) + [user, last]
        self.add(form.opening + starts[0], turns)

    def add_texts(self, form: ChatFormat, temperature: float, prompts: Sequence[Ids]) -> None:
        """Plain texts one after the other, each begun by a prompt."""
        first, *later = prompts
        turns = [(ANSWER, temperature, -1, form.opening + p) for p in later]
        self.add(form.opening + first, [*turns, (ANSWER, temperature, -1, [])])
