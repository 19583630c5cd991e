"""What HTTP costs over the engine's own client: time to first token, and tokens per second.

``python -m benchmarks.http_overhead`` starts ``mlxcel serve`` and asks one engine in two ways,
interleaved: through `mlxcel.EngineClient` on its socket, and through ``/v1/chat/completions`` as a
stream. First one request at a time, each pair with a prompt of its own: the difference in time to
the first token, pair by pair. Then several clients at once, each a thread: all tokens over the time
to the last client's end. Texts of both ways must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.http_server import Server, answers, post
from benchmarks.interleave import interleave, ratio
from benchmarks.together import together
from mlxcel import EngineClient
from mlxcel.types import Speculation

PROMPT = "Tell me about the sea, the land and the sky, in about {} sentences."

Ask = Callable[[int, int], tuple[float, str]]


def messages(number: int) -> list[dict[str, Any]]:
    """The chat of a number."""
    return [{"role": "user", "content": PROMPT.format(number)}]


def through_client(client: EngineClient, speculation: Speculation) -> Ask:
    """Ask the engine's client: seconds to the first text, and the text."""

    def ask(number: int, tokens: int) -> tuple[float, str]:
        began, first, text = time.perf_counter(), 0.0, ""
        for chunk in client.stream(
            messages(number), max_tokens=tokens, seed=number, temperature=0.7,
            speculation=speculation,
        ):  # fmt: skip
            if not text and chunk.text:
                first = time.perf_counter() - began
            text += chunk.text
        return first, text

    return ask


def through_http(address: str, speculation: str) -> Ask:
    """Ask the API: seconds to the first text, a new connection included, and the text."""

    def ask(number: int, tokens: int) -> tuple[float, str]:
        body = {
            "messages": messages(number), "max_tokens": tokens, "seed": number, "stream": True,
            "temperature": 0.7, "speculation": speculation,
        }  # fmt: skip
        began, first, text = time.perf_counter(), 0.0, ""
        connection, response = post(address, body)
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()!r}")
        for event in answers(response):
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                if not text and piece:
                    first = time.perf_counter() - began
                text += piece
        connection.close()
        return first, text

    return ask


def latency(client: Ask, api: Ask, pairs: int) -> list[tuple[float, float]]:
    """Seconds to the first token of both ways, for one prompt after another."""
    found = []
    for number in range(-3, pairs):
        ways = (client, api) if number % 2 == 0 else (api, client)
        first = {way: way(number % 1000, 4) for way in ways}
        if first[client][1] != first[api][1]:
            raise RuntimeError(f"texts differ: {first[client][1]!r}, {first[api][1]!r}")
        if number >= 0:
            found.append((first[client][0], first[api][0]))
    return found


def throughput(
    clients: list[Ask], apis: list[Ask], tokens: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of interleaved runs, through the API and through clients."""
    texts: list[list[str]] = []

    def arm(asks: list[Ask]) -> Callable[[], float]:
        def run() -> float:
            seconds, found = together([partial(ask, at, tokens) for at, ask in enumerate(asks)])
            texts.append([text for _, text in found])
            return seconds

        return run

    api, client = interleave([arm(apis), arm(clients)], repeats)
    if any(found != texts[0] or not all(found) for found in texts):
        raise RuntimeError("texts differ between runs, or some are empty")
    return api, client


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--speculation", default="off", choices=["auto", "on", "off"])
    parser.add_argument("--pairs", type=int, default=100, help="of single requests")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer of many clients")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the samples here")
    return parser.parse_args()


def main() -> None:
    """Measure both and print."""
    args = parse()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), "--model", args.model, "--drafter", args.drafter) as server,
    ):
        clients = [EngineClient(server.socket, wait=60) for _ in range(args.clients)]
        asks = [through_client(client, args.speculation) for client in clients]
        api = through_http(server.address, args.speculation)
        pairs = latency(asks[0], api, args.pairs)
        http_seconds, client_seconds = throughput(
            asks, [api] * args.clients, args.tokens, args.repeats
        )
        for client in clients:
            client.close()
    added = sorted(1e3 * (http - own) for own, http in pairs)
    own, http = (1e3 * statistics.median(each) for each in zip(*pairs, strict=True))
    print(f"first token, {args.pairs} pairs: client p50 {own:.1f} ms, HTTP p50 {http:.1f} ms")
    print(
        f"  added, pair by pair: p50 {statistics.median(added):.2f} ms, quartiles "
        f"{added[len(added) // 4]:.2f} to {added[3 * len(added) // 4]:.2f} ms"
    )
    print(f"{args.clients} streams of {args.tokens} tokens, HTTP over client: tokens per second")
    print(f"  {ratio(http_seconds, client_seconds)}; texts equal")
    if args.json is not None:
        samples = {"pairs": pairs, "http": http_seconds, "client": client_seconds}
        args.json.write_text(json.dumps(samples, indent=1))


if __name__ == "__main__":
    main()
