"""Many clients of the HTTP API at once, some of which vanish: nothing may leak or fail.

``python -m benchmarks.http_soak`` starts ``mlxcel serve`` and lets clients ask for a minute, each
in a loop: chats of random length, streamed or whole, with and without speculation; a share of the
streams is dropped at a random event. In the end it prints the statuses, what still runs, and the
engine's memory over time, and fails if a slot stayed, a status was unexpected, or the answer
after all that is not the one before.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.http_server import Server, answers, post, resident

EXPECTED = {200, 429, 503}
IDLE_SECONDS = 10.0


class Soak:
    """What all clients did, counted under one lock."""

    def __init__(self, address: str, args: argparse.Namespace) -> None:
        self._address, self._args = address, args
        self._lock = threading.Lock()
        self.until = time.monotonic() + args.seconds
        self.counts: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[int] = collections.Counter()
        self.failures: list[str] = []

    def client(self, number: int) -> None:
        """Ask until the time is over."""
        rng = random.Random(number)
        while time.monotonic() < self.until:
            try:
                self._ask(rng)
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}")

    def _ask(self, rng: random.Random) -> None:
        drop = rng.random() < self._args.vanish
        stream = drop or rng.random() < 0.7
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Count. " * rng.randint(1, self._args.words)}],
            "max_tokens": rng.randint(1, self._args.tokens), "seed": rng.randrange(1000),
            "stream": stream, "speculation": rng.choice(["auto", "on", "off"]),
        }  # fmt: skip
        connection, response = post(self._address, body)
        try:
            with self._lock:
                self.statuses[response.status] += 1
            kind = "refused"
            if response.status == 200:
                kind = self._read(response, stream, rng.randint(0, 3) if drop else None)
            else:
                response.read()
                time.sleep(0.1)
            with self._lock:
                self.counts[kind] += 1
        finally:
            connection.close()

    @staticmethod
    def _read(response: http.client.HTTPResponse, stream: bool, events: int | None) -> str:
        if not stream:
            response.read()
            return "whole"
        for seen, _ in enumerate(answers(response)):
            if seen == events:
                return "dropped"
        return "streamed"


def _answer(server: Server) -> tuple[int, Any]:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 0}
    connection, response = post(server.address, body)
    try:
        return response.status, json.loads(response.read()).get("choices")
    finally:
        connection.close()


def _idle(server: Server) -> float | None:
    """Seconds until the engine has nothing left to do; ``None`` if that never comes."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < IDLE_SECONDS:
        health = server.get("/health")
        if health["running"] == health["requests"] == 0:
            return waited
        time.sleep(0.02)
    return None


def run(args: argparse.Namespace, server: Server) -> bool:
    """Soak the server and print what came of it; whether all is well."""
    before = _answer(server)
    soak, pid = Soak(server.address, args), server.engine_pid
    threads = [threading.Thread(target=soak.client, args=(n,)) for n in range(args.clients)]
    for thread in threads:
        thread.start()
    memory = [resident(pid)]
    while time.monotonic() < soak.until:
        time.sleep(args.seconds / 12)
        memory.append(resident(pid))
    for thread in threads:
        thread.join()
    idle, after = _idle(server), _answer(server)
    unexpected = sorted(set(soak.statuses) - EXPECTED)
    print(f"{sum(soak.statuses.values())} requests of {args.clients} clients: {dict(soak.counts)}")
    print(f"statuses {dict(soak.statuses)}, unexpected: {unexpected or 'none'}")
    print(f"failures of clients: {soak.failures[:3] or 'none'}")
    print("engine idle again: " + ("NEVER" if idle is None else f"{idle:.2f} s after the last"))
    print("engine's memory, MiB: " + " ".join(f"{value:.0f}" for value in memory))
    print(f"the next request: {after[0]}, its answer {'equal' if after == before else 'DIFFERS'}")
    return idle is not None and not unexpected and not soak.failures and after == before


def main() -> int:
    """Options, a server, the soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--vanish", type=float, default=0.2, help="share of dropped streams")
    parser.add_argument("--words", type=int, default=40, help="of a prompt at most")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer at most")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), "--model", args.model, "--drafter", args.drafter) as server,
    ):
        return 0 if run(args, server) else 1


if __name__ == "__main__":
    raise SystemExit(main())
