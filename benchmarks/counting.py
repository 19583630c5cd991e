"""Exact counters of what the host does: evaluations, reads, graph nodes, calls of compiled code.

MLX's functions and the conversions of its arrays are exchanged while a `Counting` is entered.
Not seen: ``memoryview(array)`` outside of a call of compiled code, and what C++ does by itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

__all__ = ["Counting", "Crossings", "Tally", "nodes"]

READS = (
    "item", "tolist", "__array__", "__bool__", "__int__", "__float__", "__index__", "__repr__",
    "__format__", "__dlpack__",
)  # fmt: skip
"""What makes the host wait for an array and take its values."""
CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray", "from_dlpack", "frombuffer")
"""NumPy's, of an MLX array: it asks for the buffer, which has no method to exchange."""

OPERATION = re.compile(r"(\d+) \[label =.*shape=rectangle")
"""An operation's number in `mx.export_to_dot`."""


@dataclass(slots=True)
class Tally:
    """Counts so far.

    Attributes
    ----------
    evaluations : int
        Calls of ``mx.eval`` and ``mx.synchronize``; each waits.
    async_evaluations : int
        Calls of ``mx.async_eval``.
    reads : int
        Conversions of an array for the host; each waits.
    nodes : int
        Operations of the graphs that were evaluated.
    crossings : int
        Calls of compiled code through `Crossings`.
    """

    evaluations: int = 0
    async_evaluations: int = 0
    reads: int = 0
    nodes: int = 0
    crossings: int = 0

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """What has come since a copy (`asdict`) of this tally was taken."""
        return {name: value - before[name] for name, value in asdict(self).items()}


def nodes(value: Any) -> int:
    """Operations that evaluating a tree of arrays would run."""
    arrays = [each for _, each in tree_flatten(value) if isinstance(each, mx.array)]
    if not arrays:
        return 0
    out = io.StringIO()
    mx.export_to_dot(out, *arrays)
    # An operation with several outputs is there once for each.
    return len(set(OPERATION.findall(out.getvalue())))


class Counting:
    """Counts on this process while it is entered; not for use in two threads.

    Attributes
    ----------
    tally : Tally
        The counts.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._inside = False
        self._plain: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Counting:
        self._exchange(mx, "eval", self._evaluated)
        self._exchange(mx, "synchronize", self._evaluated)
        self._exchange(mx, "async_eval", self._enqueued)
        for name in READS:
            self._exchange(mx.array, name, self._read)
        for name in CONVERSIONS:
            self._exchange(np, name, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        while self._plain:
            setattr(*self._plain.pop())

    def _exchange(self, owner: Any, name: str, note: Callable[[Any], None]) -> None:
        plain = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # part of one that has been counted
                return plain(*args, **kwargs)
            self._inside = True
            try:
                note(args)
                return plain(*args, **kwargs)
            finally:
                self._inside = False

        self._plain.append((owner, name, plain))
        setattr(owner, name, counted)

    def _evaluated(self, args: Any) -> None:
        self.tally.evaluations += 1
        self.tally.nodes += nodes(args)

    def _enqueued(self, args: Any) -> None:
        self.tally.async_evaluations += 1
        self.tally.nodes += nodes(args)

    def _read(self, args: Any) -> None:
        if args and isinstance(args[0], mx.array):
            self.tally.reads += 1
            self.tally.nodes += nodes(args[0])  # it is evaluated first where it was not


class Crossings:
    """Stands in front of a compiled object and counts the calls of its methods.

    Parameters
    ----------
    compiled : object
        A slot table or an n-gram index.
    tally : Tally
        Where calls are counted; an MLX array among the arguments is a read too.
    """

    def __init__(self, compiled: Any, tally: Tally) -> None:
        self._compiled, self._tally = compiled, tally

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._compiled, name)
        if not callable(found):
            return found

        def counted(*args: Any) -> Any:
            self._tally.crossings += 1
            arrays = [each for each in args if isinstance(each, mx.array)]
            self._tally.reads += len(arrays)
            self._tally.nodes += nodes(arrays)
            return found(*args)

        return counted
