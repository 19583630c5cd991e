"""What running streams notice of a long prompt: gaps between chunks of text while it is read.

A stream may wait for one chunk of the prompt, and for a round before and after it. All three are
measured in the same run: rounds before the prompt comes, and the dearest chunk, the last one, as
the prefill of the whole prompt alone less that of the prompt without its last chunk.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load_clients import Streaming, read
from benchmarks.load_figures import Trace, percentile
from benchmarks.load_prompts import long_prompt, mixed_prompts

__all__ = ["STREAMS", "measure_long", "show_long"]

STREAMS = 4
BEFORE = 8
"""Chunks every stream has had when the prompt comes."""


def prefill_alone(model: Streaming, prompt: list[int]) -> float:
    """Seconds from sending a prompt to its first token, with nothing beside it."""
    trace = Trace(0, 0, time.perf_counter())
    read(model, trace, prompt, 1, "off")
    return trace.first - trace.sent


def beside(
    model: Streaming, prompts: Sequence[list[int]], late: list[int], tokens: int, speculation: str
) -> tuple[list[Trace], Trace]:
    """Let the streams run, then send the long prompt; traces of the streams and of it."""
    traces = [Trace(at, at, time.perf_counter()) for at in range(len(prompts))]
    threads = [
        threading.Thread(target=read, args=(model, trace, prompt, tokens, speculation))
        for trace, prompt in zip(traces, prompts, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(len(trace.arrivals) < BEFORE for trace in traces):
        if not all(thread.is_alive() for thread in threads):
            raise RuntimeError("a stream ended before the long prompt came: raise --tokens")
        time.sleep(0.01)
    joined = Trace(len(prompts), len(prompts), time.perf_counter())
    read(model, joined, late, 1, speculation)
    for thread in threads:
        thread.join()
    return traces, joined


def _gaps(traces: Sequence[Trace], begin: float, end: float) -> list[float]:
    """Gaps that end within a span of time."""
    found = []
    for trace in traces:
        times = [at for at, _ in trace.arrivals]
        pairs = itertools.pairwise(times)
        found += [after - before for before, after in pairs if begin < after <= end]
    return found


def measure_long(
    args: argparse.Namespace, model: Streaming, texts: Sequence[str], chunk: int
) -> list[dict[str, Any]]:
    """One row per arm of our engine."""
    tokenizer: Any = model.tokenizer  # type: ignore[attr-defined]
    late = long_prompt(tokenizer, texts, args.long)
    prompts = mixed_prompts(
        tokenizer, texts, STREAMS, seed=args.seed, shortest=args.shortest, longest=args.longest
    )
    last = (len(late) - 1) // chunk * chunk  # where the last chunk begins
    prefill_alone(model, late[:last])  # what is traced and compiled once is no chunk's
    whole, short = prefill_alone(model, late), prefill_alone(model, late[:last])
    mean = whole / -(-len(late) // chunk)
    dearest = max(whole - short, mean)  # a short last chunk is not the dearest
    # Each chunk has a round, and a verify may take several tokens of a budget.
    tokens = args.tokens + 8 * (BEFORE + len(late) // chunk)
    rows = []
    for arm in (name for name in args.arms if name in ("off", "auto")):
        traces, joined = beside(model, prompts, late, tokens, arm)
        # When the last stream began, they were all running: the prompts' own chunks are over.
        quiet = _gaps(traces, max(trace.first for trace in traces), joined.sent)
        during = _gaps(traces, joined.sent, joined.first)
        round_seconds = statistics.median(quiet)
        rows.append({
            "arm": arm, "prompt": len(late), "chunk": chunk,
            "prefill_alone": whole, "last_chunk": whole - short,
            "mean_chunk": mean,
            "round": round_seconds, "gaps": during, "ttft": joined.first - joined.sent,
            "p50": percentile(during, 0.5), "p95": percentile(during, 0.95),
            "worst": max(during), "allowed": dearest + 2 * round_seconds,
        })  # fmt: skip
    return rows


def show_long(rows: Sequence[dict[str, Any]]) -> None:
    """The rows in milliseconds."""
    for row in rows:
        print(
            f"{row['arm']}: {STREAMS} streams beside a prompt of {row['prompt']} tokens, first "
            f"token after {row['ttft']:.2f} s ({row['prefill_alone']:.2f} s alone)\n"
            f"  gaps of the streams meanwhile: p50 {1e3 * row['p50']:.0f}, p95 "
            f"{1e3 * row['p95']:.0f}, longest {1e3 * row['worst']:.0f} ms; a round "
            f"{1e3 * row['round']:.0f} ms\n"
            f"  one chunk: {1e3 * row['mean_chunk']:.0f} ms in the mean, the last "
            f"{1e3 * row['last_chunk']:.0f} ms; allowed, with two rounds: "
            f"{1e3 * row['allowed']:.0f} ms; p95 is "
            f"{'within' if row['p95'] <= row['allowed'] else 'ABOVE'} it"
        )
