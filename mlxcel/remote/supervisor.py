"""Keeps one engine process alive. Imports no MLX, and starts the process afresh, never by fork.

The listening socket is this process's: while the engine restarts, clients that connect wait
in its queue instead of being refused.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlxcel.errors import ConfigError, EngineError, LoadError
from mlxcel.remote.address import Listener
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.wire import ANSWER_LIMIT, REQUEST_LIMIT, Frames, WireError, pack
from mlxcel.remote.wire_types import decode_error

__all__ = ["CRASHES", "CRASH_SECONDS", "Supervisor", "describe_exit"]

log = logging.getLogger(__name__)

CRASHES = 5
CRASH_SECONDS = 60.0
"""So many crashes within so many seconds, and the engine is given up."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
GRACE_SECONDS = 10.0
"""What an engine that was told to end may take longer than its drain."""

State = dict[str, Any]


def describe_exit(status: int) -> str:
    """How a process ended, from `Popen.returncode`."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (by someone, or by the system for lack of memory)" if status == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


class Supervisor:
    """Runs an engine process, and another when it has died.

    Parameters
    ----------
    spec : EngineSpec
        What it loads.
    listener : Listener
        Where it serves; stays open from one process to the next.
    restart : bool
        Whether a process that died is replaced.
    on_state : callable, optional
        Is told the engine's states, and ``{"state": "died", "reason": ..., "pause": ...}``.
    command : sequence of str, optional
        Runs the process; two descriptors are appended.
    """

    def __init__(
        self,
        spec: EngineSpec,
        listener: Listener,
        *,
        restart: bool = True,
        on_state: Callable[[State], None] = lambda state: None,
        command: tuple[str, ...] = (sys.executable, "-m", "mlxcel.remote.child"),
    ) -> None:
        self._spec = spec
        self._listener = listener
        self._restart = restart
        self._on_state = on_state
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._last: State = {}
        self._crashes: deque[float] = deque(maxlen=CRASHES)
        self._stop = threading.Event()
        self._kill_at: float | None = None

    def run(self) -> None:
        """Serve until told to stop by SIGTERM or SIGINT; they drain, a second one cancels.

        Raises
        ------
        LoadError, ConfigError
            The model cannot be loaded; trying again would not help.
        EngineError
            The engine died and is not restarted, or died too often.
        """
        with self._signals():
            while not self._stop.is_set():
                status = self._one_life()
                if status == 0 or self._stop.is_set():
                    return
                self._after_death(status)

    def stop(self) -> None:
        """Tell the engine to drain and end; a second call, to end at once. Signal-safe."""
        self._stop.set()
        self._kill_at = time.monotonic() + self._spec.drain_seconds + GRACE_SECONDS
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, lambda *_: self.stop())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _one_life(self) -> int:
        """Start a process and wait for its end; return its status."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = self._spawn(theirs)
            self._process = process
            try:
                ours.sendall(pack(["spec", self._spec.to_plain()], REQUEST_LIMIT))
                if self._stop.is_set():
                    process.terminate()
                self._follow(ours)
            except OSError as error:  # it is dead already
                log.debug("the engine's lifeline broke: %s", error)
            finally:
                status = self._reap(process)
        return status

    def _spawn(self, lifeline: socket.socket) -> subprocess.Popen[bytes]:
        fds = (lifeline.fileno(), self._listener.socket.fileno())
        return subprocess.Popen(
            [*self._command, *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for us
        )

    def _follow(self, lifeline: socket.socket) -> None:
        """Take the process's messages until it ends."""
        frames = Frames(ANSWER_LIMIT)
        self._last = {}
        while True:
            ready, _, _ = select.select([lifeline], [], [], 1.0)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                return
            if not ready:
                continue
            data = lifeline.recv(65536)
            if not data:
                return
            try:
                messages = frames.feed(data)
            except WireError as error:
                raise EngineError(f"the engine's messages are not understood: {error}") from error
            for _, state in messages:
                self._last = state
                self._on_state(state)

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        try:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                log.error("the engine did not end in time and is killed")
                process.kill()
            return process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self._process = None

    def _after_death(self, status: int) -> None:
        """Give up, or pause before the next process."""
        reason = f"the engine process {describe_exit(status)}"
        if self._last.get("state") == "failed":
            error = decode_error(self._last["error"])
            if isinstance(error, (LoadError, ConfigError)) and status == os.EX_CONFIG:
                raise error
            reason = f"{reason}: {error.message}"
        if not self._restart:
            raise EngineError(reason)
        now = time.monotonic()
        self._crashes.append(now)
        recent = [at for at in self._crashes if now - at < CRASH_SECONDS]
        if len(recent) >= CRASHES:
            raise EngineError(
                f"the engine died {len(recent)} times in {CRASH_SECONDS:.0f} s and is given up; "
                f"the last time {reason}"
            )
        pause = min(FIRST_PAUSE * 3 ** (len(recent) - 1), LONGEST_PAUSE)
        self._on_state({"state": "died", "reason": reason, "pause": pause})
        self._stop.wait(pause)
