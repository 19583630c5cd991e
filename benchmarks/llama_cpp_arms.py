"""llama.cpp as an arm of a comparison: its server as a program, or its Python binding."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Answer", "Arm", "Binding", "Server", "find_arm"]

START_SECONDS = 120.0
ANSWER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer.

    Attributes
    ----------
    ids : list of int
        Token ids.
    seconds_per_token : float
        From the first token to the last, over the tokens after the first.
    """

    ids: list[int]
    seconds_per_token: float


class Arm(Protocol):
    """Something that answers."""

    @property
    def name(self) -> str:
        """What it is, with its version."""

    def answer(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Decode so many tokens greedily, past any end of sequence."""

    def close(self) -> None:
        """End it."""


def find_arm(gguf: Path, *, server: str | None, threads: int, context: int) -> Arm | None:
    """The server if it is named or on the path, else the binding if it is installed."""
    program = server or shutil.which("llama-server")
    if program is not None:
        return Server(program, gguf, threads=threads, context=context)
    if find_spec("llama_cpp") is not None:
        return Binding(gguf, threads=threads, context=context)
    return None


class Server:
    """``llama-server`` on a port of its own; ended by `close`.

    Parameters
    ----------
    program : str
        Path of ``llama-server``.
    gguf : Path
        The model.
    threads, context : int
        Threads, and tokens of context.
    """

    def __init__(self, program: str, gguf: Path, *, threads: int, context: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        words = [program, "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
        words += ["--threads", str(threads), "--ctx-size", str(context), "--parallel", "1"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.name = "llama-server"
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Wait until the model is loaded; `/health` answers 503 before."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"llama-server ended with {self._process.returncode} while it started"
                )
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                self._ask("/health", None, 5.0)
                return
            time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready after {START_SECONDS:.0f} s")

    def _ask(self, path: str, body: Any, seconds: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.load(response)

    def answer(self, prompt: Sequence[int], tokens: int) -> Answer:
        """See `Arm`; ids and times are the server's own."""
        body = {
            "prompt": list(prompt), "n_predict": tokens, "temperature": 0, "top_k": 1,
            "ignore_eos": True, "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        return answer_of(self._ask("/completion", body, ANSWER_SECONDS), tokens)

    def close(self) -> None:
        """See `Arm`."""
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def answer_of(reply: Any, tokens: int) -> Answer:
    """Read a reply of ``/completion``; its clock starts with the first token.

    Raises
    ------
    RuntimeError
        It has no token ids, or not as many as asked for.
    """
    ids = [int(each) for each in reply.get("tokens", [])]
    timings = reply.get("timings", {})
    if len(ids) != tokens or timings.get("predicted_n") != tokens:
        raise RuntimeError(
            f"llama-server gave {len(ids)} token ids and a count of "
            f"{timings.get('predicted_n')}, asked for {tokens}; is it older than return_tokens?"
        )
    return Answer(ids, 1e-3 * float(timings["predicted_ms"]) / max(tokens - 1, 1))


class Binding:
    """``llama_cpp`` of llama-cpp-python, in this process.

    Parameters
    ----------
    gguf : Path
        The model.
    threads, context : int
        Threads, and tokens of context.
    """

    def __init__(self, gguf: Path, *, threads: int, context: int) -> None:
        import llama_cpp

        self.name = f"llama-cpp-python {llama_cpp.__version__}"
        self._model: Any = llama_cpp.Llama(
            model_path=str(gguf), n_ctx=context, n_threads=threads, n_threads_batch=threads,
            verbose=False,
        )  # fmt: skip

    def answer(self, prompt: Sequence[int], tokens: int) -> Answer:
        """See `Arm`; timed by our clock."""
        model = self._model
        model.reset()
        model.eval(list(prompt))
        ids = [int(model.sample(temp=0.0))]
        began = time.perf_counter()
        while len(ids) < tokens:
            model.eval(ids[-1:])
            ids.append(int(model.sample(temp=0.0)))
        return Answer(ids, (time.perf_counter() - began) / max(tokens - 1, 1))

    def close(self) -> None:
        """See `Arm`."""
        self._model.close()
