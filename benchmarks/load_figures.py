"""What a run under load came to: plain arithmetic over the times at which tokens arrived.

Two things are called latency between tokens, and both are given. *Between chunks*: what a reader
waits for between two pieces of text; a chunk of a verify pass holds several tokens. *Per token*:
time from a request's first token to its last over the tokens after the first; one figure per
request, and percentiles over requests. A gap shared out over the tokens of its chunk would be
neither.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Trace", "figures", "percentile", "steady_window"]


@dataclass
class Trace:
    """One request as its client saw it; times are seconds of one clock.

    Attributes
    ----------
    number : int
        Which request of the load it is.
    stream : int
        Which client sent it.
    sent : float
        When it was due (open loop) or sent (closed loop).
    arrivals : list of (float, int)
        Time and number of tokens of every chunk with tokens.
    ids : list of int
        The tokens.
    rounds, widths, proposed, accepted : int
        Verify passes, sum of their widths, drafts proposed and accepted.
    """

    number: int
    stream: int
    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    widths: int = 0
    proposed: int = 0
    accepted: int = 0

    def take(self, at: float, tokens: Sequence[int]) -> None:
        """Tokens have arrived."""
        if tokens:
            self.arrivals.append((at, len(tokens)))
            self.ids.extend(tokens)

    @property
    def first(self) -> float:
        """When the first token arrived."""
        return self.arrivals[0][0]

    @property
    def last(self) -> float:
        """When the last token arrived."""
        return self.arrivals[-1][0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        times = [at for at, _ in self.arrivals]
        return [after - before for before, after in itertools.pairwise(times)]


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that at least ``share`` of all values do not exceed; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def steady_window(traces: Sequence[Trace]) -> tuple[float, float]:
    """From the moment every stream has had a token until the first stream ends its last request."""
    streams: dict[int, list[Trace]] = {}
    for trace in traces:
        streams.setdefault(trace.stream, []).append(trace)
    begin = max(min(trace.first for trace in mine) for mine in streams.values())
    end = min(max(trace.last for trace in mine) for mine in streams.values())
    return begin, end


def _rate(traces: Sequence[Trace], begin: float, end: float) -> float:
    """Tokens per second that arrived after ``begin`` and not after ``end``; NaN of no time."""
    if end <= begin:
        return math.nan
    arrived = [count for trace in traces for at, count in trace.arrivals if begin < at <= end]
    return sum(arrived) / (end - begin)


def figures(traces: Sequence[Trace]) -> dict[str, Any]:
    """Figures of one run; seconds, and tokens per second.

    ``steady`` is the throughput inside `steady_window`, where all streams have work: the
    beginning and the tail, in which fewer are active, are left out. ``whole`` is that from the
    first request to the last token.
    """
    begin, end = min(t.sent for t in traces), max(t.last for t in traces)
    waits = [t.first - t.sent for t in traces]
    gaps = [gap for t in traces for gap in t.gaps]
    per_token = [(t.last - t.first) / (len(t.ids) - 1) for t in traces if len(t.ids) > 1]
    rounds, proposed = sum(t.rounds for t in traces), sum(t.proposed for t in traces)
    return {
        "requests": len(traces),
        "tokens": sum(len(t.ids) for t in traces),
        "seconds": end - begin,
        "whole": sum(len(t.ids) for t in traces) / (end - begin),
        "steady": _rate(traces, *steady_window(traces)),
        "ttft_p50": percentile(waits, 0.5),
        "ttft_p95": percentile(waits, 0.95),
        "chunk_p50": percentile(gaps, 0.5),
        "chunk_p95": percentile(gaps, 0.95),
        "token_p50": percentile(per_token, 0.5),
        "token_p95": percentile(per_token, 0.95),
        "width": sum(t.widths for t in traces) / rounds if rounds else 1.0,
        "acceptance": sum(t.accepted for t in traces) / proposed if proposed else 0.0,
    }
