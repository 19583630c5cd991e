"""Copies of caches that requests left behind, and counters of what they were good for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx

from mlxcel.decide.prefix_index import Prefix, PrefixIndex, Want
from mlxcel.runtime.row_copy import Resume, RowCopy

__all__ = ["Kept", "PrefixStore"]


@dataclass(frozen=True, slots=True)
class Kept:
    """One prefix with its copies; lazy as long as nobody has evaluated them.

    Attributes
    ----------
    prefix : Prefix
        What the index knows of it.
    target : RowCopy
        The target's caches.
    drafter : RowCopy or None
        The drafter's own, of a request that speculated.
    """

    prefix: Prefix
    target: RowCopy
    drafter: RowCopy | None = None

    @classmethod
    def of(
        cls, tokens: bytes, whole: int, target: RowCopy, drafter: RowCopy | None, owner: str
    ) -> Kept:
        """Put copies and tokens together; see `Prefix` for what they mean."""
        prefix = Prefix(
            tokens=tokens,
            cached=target.length,
            first=target.first,
            whole=whole,
            nbytes=target.nbytes + len(tokens),
        )
        if drafter is not None:
            prefix = replace(
                prefix,
                owner=owner,
                drafted=drafter.length,
                first=max(target.first, drafter.first),
                nbytes=prefix.nbytes + drafter.nbytes,
            )
        return cls(prefix, target, drafter)

    def resume(self, count: int, want: Want, branch: int) -> Resume:
        """Begin a request with the first ``count`` tokens; ``branch`` is as in `Resume`."""
        return Resume(count, self.target, self.drafter if want.owner else None, branch)

    def evaluate(self) -> None:
        """Make the copies, so that they hold nothing of where they come from."""
        mx.async_eval(self.target.state, [] if self.drafter is None else self.drafter.state)


class PrefixStore:
    """Prefixes of requests that have ended, the least recently used out.

    Parameters
    ----------
    budget : int
        Bytes; 0 keeps none.
    """

    def __init__(self, budget: int) -> None:
        self.index = PrefixIndex(budget)
        self._kept: dict[int, Kept] = {}
        self.hits = self.misses = self.reused_tokens = self.stored = self.evicted = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all copies and of their tokens."""
        return self.index.nbytes

    def best(self, want: Want) -> tuple[int, int] | None:
        """Key of the prefix that serves most, and how many tokens."""
        return self.index.best(want)

    def take(self, key: int) -> Kept:
        """A prefix that serves, which counts as used."""
        self.index.use(key)
        return self._kept[key]

    def put(self, kept: Kept) -> bool:
        """Keep a prefix if it is worth its bytes; its copies are made only then."""
        key, covered, evicted = self.index.add(kept.prefix)
        for gone in (*covered, *evicted):
            del self._kept[gone]
        self.evicted += len(evicted)
        if key is None:
            return False
        kept.evaluate()
        self._kept[key] = kept
        self.stored += 1
        return True

    def count(self, tokens: int) -> None:
        """Count a prompt: the tokens that it did not have to read."""
        self.hits += tokens > 0
        self.misses += tokens == 0
        self.reused_tokens += tokens

    def clear(self) -> None:
        """Give all copies back; the counters stay."""
        self.index.clear()
        self._kept.clear()

    def snapshot(self) -> dict[str, int]:
        """State and counters since the engine was made; bytes in ``bytes`` and ``budget``."""
        return {
            "entries": len(self.index),
            "bytes": self.nbytes,
            "budget": self.index.budget,
            "hits": self.hits,
            "misses": self.misses,
            "reused_tokens": self.reused_tokens,
            "stored": self.stored,
            "evicted": self.evicted,
        }
