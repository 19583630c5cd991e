"""Strict reading of JSON objects: nothing missing, nothing unknown, and every fault has a place."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from typing import TypeVar

from mlxcel.errors import LoadError

__all__ = ["Fields"]

_Word = TypeVar("_Word", bound=str)

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


class Fields:
    """The fields of one JSON object, each to be taken exactly once.

    Parameters
    ----------
    value : object
        What should be a JSON object.
    where : str
        Its place, for messages: file, field and index.

    Raises
    ------
    LoadError
        Not an object. The methods raise it for a missing field or a bad value, and `close`
        for fields that nobody took.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise LoadError(f"{where} must be an object with named fields, got {value!r}")
        self._left = dict(value)
        self.where = where

    def fault(self, name: str, value: object, wanted: str) -> LoadError:
        """The error for a bad value of a field."""
        return LoadError(f"{self.where}: {name} must be {wanted}, got {value!r}", param=name)

    def take(self, name: str) -> object:
        """The value of a field, whatever it is."""
        if name not in self._left:
            near = difflib.get_close_matches(name, map(str, self._left), n=1)
            hint = f"is {near[0]!r} meant?" if near else "add it, as null where it is not known"
            raise LoadError(f"{self.where}: the field {name!r} is missing; {hint}", param=name)
        return self._left.pop(name)

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(name, value, "a text that is not empty")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text that is not empty, or null."""
        return None if self._null(name) else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; it may be empty."""
        value = self.take(name)
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.fault(name, value, "a list of texts")
        return tuple(value)

    def word(self, name: str, allowed: tuple[_Word, ...]) -> _Word:
        """One word of a closed set."""
        value = self.take(name)
        for word in allowed:
            if word == value:
                return word
        raise self.fault(name, value, f"one of {', '.join(allowed)}")

    def word_or_none(self, name: str, allowed: tuple[_Word, ...]) -> _Word | None:
        """One word of a closed set, or null."""
        return None if self._null(name) else self.word(name, allowed)

    def number(self, name: str, low: float, high: float) -> float:
        """A finite number within bounds, as it is written: a whole one stays whole."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(name, value, "a number")
        # Bounds first: a whole number may be too large for a float. NaN is within none.
        if not low <= value <= high or not math.isfinite(value):
            raise self.fault(name, value, f"between {low} and {high}")
        return value

    def number_or_none(self, name: str, low: float, high: float) -> float | None:
        """A number within bounds, or null."""
        return None if self._null(name) else self.number(name, low, high)

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self.number(name, low, high)
        if not isinstance(value, int):
            raise self.fault(name, value, "a whole number")
        return value

    def whole_or_none(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds, or null."""
        return None if self._null(name) else self.whole(name, low, high)

    def flag_or_none(self, name: str) -> bool | None:
        """True, false or null."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.fault(name, value, "true, false or null")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.flag_or_none(name)
        if value is None:
            raise self.fault(name, value, "true or false")
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers from 0; it may be empty."""
        value = self.take(name)
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
        ):
            raise self.fault(name, value, "a list of whole numbers from 0")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, object]:
        """An object whose fields are not looked at."""
        value = self.take(name)
        if not isinstance(value, Mapping):
            raise self.fault(name, value, "an object")
        return dict(value)

    def numbers_or_none(self, name: str) -> tuple[float, ...] | None:
        """A list of positive finite numbers, or null."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value:
            raise self.fault(name, value, "a list of numbers or null")
        for number in value:
            bad = isinstance(number, bool) or not isinstance(number, (int, float))
            # By comparison: a whole number may be too large for a float. NaN is within none.
            if bad or not 0 < number <= sys.float_info.max:
                raise self.fault(name, number, "a list of positive numbers")
        return tuple(value)

    def date_or_none(self, name: str) -> str | None:
        """An ISO 8601 date, to the day or to the month, or null."""
        value = self.take(name)
        if value is None:
            return None
        wanted = "a date as 2026-08-20 or 2026-08, or null"
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise self.fault(name, value, wanted)
        try:
            date.fromisoformat(value if len(value) == 10 else f"{value}-01")
        except ValueError:
            raise self.fault(name, value, wanted) from None
        return value

    def day(self, name: str) -> str:
        """An ISO 8601 date to the day."""
        value = self.date_or_none(name)
        if value is None or len(value) != 10:
            raise LoadError(f"{self.where}: {name} must be a day, got {value!r}", param=name)
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an inner object."""
        return Fields(self.take(name), f"{self.where}: {name}")

    def inner_or_none(self, name: str) -> Fields | None:
        """The fields of an inner object, or null."""
        return None if self._null(name) else self.inner(name)

    def item_lists(self, name: str) -> Iterator[Iterator[Fields]]:
        """The objects of a list of lists, each with its place."""
        value = self.take(name)
        if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
            raise self.fault(name, value, "a list of lists")
        for at, inner in enumerate(value):
            where = f"{self.where}: {name}[{at}]"
            yield (Fields(item, f"{where}[{number}]") for number, item in enumerate(inner))

    def items(self, name: str) -> Iterator[Fields]:
        """The objects of a list, each with its place."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self.fault(name, value, "a list")
        for number, item in enumerate(value):
            yield Fields(item, f"{self.where}: {name}[{number}]")

    def table(self, name: str) -> tuple[tuple[str, str], ...]:
        """An object of texts, as pairs in the order of their names."""
        value = self.take(name)
        if not isinstance(value, Mapping) or not all(
            isinstance(v, str) for pair in value.items() for v in pair
        ):
            raise self.fault(name, value, "an object of texts")
        return tuple(sorted(value.items()))

    def close(self) -> None:
        """Refuse fields that nobody took."""
        if not self._left:
            return
        names = ", ".join(sorted(map(str, self._left)))
        raise LoadError(f"{self.where}: unknown field {names}; remove it", param=names)

    def _null(self, name: str) -> bool:
        if name in self._left and self._left[name] is None:
            self.take(name)
            return True
        return False
