"""Which kept prefix serves a new prompt, and which one has to go: no caches, only token ids.

A prefix is what one request left behind: its tokens, and how many of them are in copies of
caches. A new prompt resumes at position n if its first n tokens are those of the prefix and the
copies can be rewound to n.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["LEAST", "Prefix", "PrefixIndex", "Want", "common", "pack"]

LEAST = 16
"""Fewer tokens are not resumed: reading them costs less than copying, and every prompt of a
chat model begins with the same few."""

_WIDTH = 4  # bytes of a packed id


def pack(tokens: Iterable[int]) -> bytes:
    """Token ids as bytes, four each, so that runs of them are compared at once."""
    return array("I", tokens).tobytes()


def common(one: bytes, other: bytes) -> int:
    """Tokens that two packed sequences begin with in common."""
    low, high = 0, min(len(one), len(other)) // _WIDTH
    if one[: high * _WIDTH] == other[: high * _WIDTH]:
        return high
    while high - low > 1:  # the first difference is in [low, high)
        middle = (low + high) // 2
        half = slice(low * _WIDTH, middle * _WIDTH)
        if one[half] == other[half]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Want:
    """What a new request can make use of.

    Attributes
    ----------
    prompt : bytes
        Its packed prompt.
    owner : str
        Drafter whose own caches it needs filled too; empty if it needs none.
    chunk : int
        Resume only after whole prompt chunks of so many tokens; 0 resumes anywhere.
    """

    prompt: bytes
    owner: str = ""
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a request left behind.

    Attributes
    ----------
    tokens : bytes
        Packed ids of prompt and output, also those that were never fed.
    cached : int
        How many of them are in the copy of the target's caches.
    first : int
        Fewest tokens that the copies can be rewound to: 0, or more once the ring of a
        sliding-window layer has forgotten what lies before.
    whole : int
        How many of them came in as whole chunks of a prompt.
    owner : str
        Drafter whose caches were copied too; empty without.
    drafted : int
        Tokens in that copy.
    nbytes : int
        Bytes of all copies.
    """

    tokens: bytes
    cached: int
    first: int = 0
    whole: int = 0
    owner: str = ""
    drafted: int = 0
    nbytes: int = 0

    def serves(self, want: Want) -> int:
        """Tokens that a request can resume from; 0 if none, or too few to be worth it.

        The last token of a prompt is always computed, since its hidden state gives the first
        output token. With a drafter's caches one token less than the match is resumed: what an
        MTP head keeps at a position depends on the token after it.
        """
        count = self.shares(want)
        return count if count >= self.first else 0

    def shares(self, want: Want) -> int:
        """What it would serve if no ring had forgotten anything; 0 for too few tokens."""
        if want.owner and want.owner != self.owner:
            return 0
        count = min(common(self.tokens, want.prompt), self.cached + 1)
        if want.owner:
            count = min(count - 1, self.drafted)
        count = min(count, self.cached, len(want.prompt) // _WIDTH - 1)
        if want.chunk:
            count = min(count, self.whole) // want.chunk * want.chunk
        return count if count >= LEAST else 0

    def covers(self, other: Prefix) -> bool:
        """Whether whatever the other serves, this one does."""
        return (
            self.tokens.startswith(other.tokens)
            and self.cached >= other.cached
            and self.first <= other.first
            and self.whole >= other.whole
            and (not other.owner or (self.owner == other.owner and self.drafted >= other.drafted))
        )


class PrefixIndex:
    """Prefixes in the order of their last use, within a budget of bytes.

    Parameters
    ----------
    budget : int
        Bytes that all copies may take together.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._prefixes: OrderedDict[int, Prefix] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._prefixes)

    def best(self, want: Want) -> tuple[int, int] | None:
        """Key of the prefix that serves most, and how many tokens; the latest used of equals."""
        found: tuple[int, int] | None = None
        for key, prefix in reversed(self._prefixes.items()):
            count = prefix.serves(want)
            if count > (found[1] if found else 0):
                found = key, count
        return found

    def most_shared(self, want: Want) -> int:
        """Most tokens that any prefix has in common with a prompt, served or not."""
        return max((prefix.shares(want) for prefix in self._prefixes.values()), default=0)

    def use(self, key: int) -> None:
        """A prefix has served: it goes last."""
        self._prefixes.move_to_end(key)

    def add(self, prefix: Prefix) -> tuple[int | None, list[int], list[int]]:
        """Take in a prefix if it is worth its bytes.

        Returns
        -------
        int or None
            Its key; ``None`` if it is too short, above the budget by itself, or covered by
            another, which then counts as used.
        list of int
            Keys of those that it covers, which are gone.
        list of int
            Keys of those that had to make room, which are gone.
        """
        if prefix.cached < max(prefix.first, LEAST) or prefix.nbytes > self.budget:
            return None, [], []
        for key, held in self._prefixes.items():
            if held.covers(prefix):
                self.use(key)
                return None, [], []
        covered = [key for key, held in self._prefixes.items() if prefix.covers(held)]
        for key in covered:
            self._remove(key)
        evicted = []
        while self.nbytes + prefix.nbytes > self.budget:
            evicted.append(next(iter(self._prefixes)))
            self._remove(evicted[-1])
        key, self._next = self._next, self._next + 1
        self._prefixes[key] = prefix
        self.nbytes += prefix.nbytes
        return key, covered, evicted

    def _remove(self, key: int) -> None:
        self.nbytes -= self._prefixes.pop(key).nbytes

    def clear(self) -> None:
        """Forget all."""
        self._prefixes.clear()
        self.nbytes = 0
