"""A ``mlxcel serve`` for the HTTP benchmarks, and a small client that reads its streams."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Server", "answers", "post", "resident"]

START_SECONDS = 600.0
END_SECONDS = 60.0


class Server:
    """A running ``mlxcel serve`` on a free port of the loopback.

    Parameters
    ----------
    folder : Path
        For its socket and what it prints.
    *words : str
        Further options of ``mlxcel serve``.

    Attributes
    ----------
    address : str
        Of the API.
    socket : Path
        Of the engine behind it.
    """

    def __init__(self, folder: Path, *words: str) -> None:
        self.socket = folder / "engine.sock"
        self._out = folder / "out"
        command = [sys.executable, "-m", "mlxcel", "serve", "--port", "0"]
        with self._out.open("w") as out:
            self._process = subprocess.Popen(
                [*command, "--socket", str(self.socket), *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"MLXCEL_PREFIX_BYTES": "0"},
            )
        self.address = self._wait()

    def _wait(self) -> str:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            found = re.search(r"at (http://[\d.:]+)", self._out.read_text())
            if found:
                return found[1]
            time.sleep(0.1)
        self.close()
        raise RuntimeError(f"mlxcel serve did not start:\n{self._out.read_text()}")

    def get(self, path: str) -> Any:
        """What a GET gives, from JSON."""
        connection = _connection(self.address)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    @property
    def engine_pid(self) -> int:
        """The engine's process: the largest child, since it holds the model."""
        children = [pid for pid, parent in _parents() if parent == self._process.pid]
        return max(children, key=resident)

    def close(self) -> None:
        """End it in order; kill what does not end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resident(pid: int) -> float:
    """Resident memory of a process, MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended
            continue
        yield int(stat.parent.name), int(text.rpartition(")")[2].split()[1])


def _connection(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)


def post(
    address: str, body: dict[str, Any]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send a chat completion; the caller reads the response and closes the connection."""
    connection = _connection(address)
    words = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), words)
    return connection, connection.getresponse()


def answers(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream, until ``[DONE]``.

    Raises
    ------
    RuntimeError
        The stream ended early or carries an error.
    """
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            return
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"the stream carries an error: {event['error']}")
        yield event
    raise RuntimeError("the stream ended without [DONE]")
