"""Tokens per second through the engine process, against the same engine in this process.

``python -m benchmarks.engine_process`` starts an engine process and loads the same model here.
Both answer the same requests, as many at once as there are clients, each client a thread with a
connection of its own that reads a stream. Runs are interleaved (A B B A ...); a run's rate is all
tokens over the time from the start to the last client's end. Token ids of both arms must be equal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.interleave import interleave, ratio
from benchmarks.together import together
from mlxcel import EngineClient, load
from mlxcel.config import Settings
from mlxcel.front import Front
from mlxcel.remote.address import Listener
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.supervisor import Supervisor

PROMPT = "Tell me about the sea, the land and the sky, in about {} sentences."


def stream_all(fronts: Sequence[Front], tokens: int) -> tuple[float, list[tuple[int, ...]]]:
    """Stream one answer per front at once; return the seconds and the token ids."""

    def read(at: int) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        for chunk in fronts[at].stream(
            PROMPT.format(at), max_tokens=tokens, ignore_eos=True, temperature=0.7, seed=at
        ):
            found += chunk.token_ids
        return found

    return together([partial(read, at) for at in range(len(fronts))])


def compare(
    here: Front, clients: Sequence[EngineClient], args: argparse.Namespace
) -> dict[str, Any]:
    """Interleaved runs of both arms."""
    answers: list[list[tuple[int, ...]]] = []

    def arm(fronts: Sequence[Front]) -> Callable[[], float]:
        def run() -> float:
            seconds, found = stream_all(fronts, args.tokens)
            answers.append(found)
            return seconds

        return run

    through, alone = interleave([arm(clients), arm([here] * args.clients)], repeats=args.repeats)
    total = args.clients * args.tokens
    share = ratio(through, alone)
    return {
        "clients": args.clients,
        "tokens": args.tokens,
        "process_tokens_per_second": [total / seconds for seconds in through],
        "alone_tokens_per_second": [total / seconds for seconds in alone],
        "ratio": {"median": share.median, "low": share.low, "high": share.high},
        "equal": all(found == answers[0] for found in answers),
        "complete": all(len(ids) == args.tokens for found in answers for ids in found),
    }


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="per client and run")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the raw rates here")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and fail where answers differ."""
    args = parse()
    settings = Settings.from_env(prefix_bytes=0)
    with tempfile.TemporaryDirectory() as folder, Listener(Path(folder) / "e.sock") as listener:
        spec = EngineSpec(target=args.model, drafter=args.drafter, settings=settings)
        supervisor = Supervisor(spec, listener, restart=False)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            clients = [EngineClient(listener.path, wait=600) for _ in range(args.clients)]
            with load(args.model, args.drafter, config=settings) as here:
                found = compare(here, clients, args)
            for client in clients:
                client.close()
        finally:
            supervisor.stop()
            thread.join()
    for name in ("process", "alone"):
        rates = sorted(found[f"{name}_tokens_per_second"])
        print(f"{name:8} {rates[len(rates) // 2]:8.1f} tok/s ({rates[0]:.1f} to {rates[-1]:.1f})")
    share = found["ratio"]
    print(f"process / alone {share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})")
    print(f"answers equal: {found['equal']}, complete: {found['complete']}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    return 0 if found["equal"] and found["complete"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
