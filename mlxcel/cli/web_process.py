"""Gunicorn as a process beside the engine's supervisor: started, watched and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from mlxcel.errors import ConfigError, EngineError
from mlxcel.remote.supervisor import Supervisor, describe_exit

__all__ = ["Web", "WebOptions", "run_both"]

LATE_SECONDS = 10.0
"""What gunicorn may take longer than its grace before it is killed."""

WATCH_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """What `Web` is told; see the options of ``mlxcel serve``.

    ``grace`` is in seconds: how long answers may go on after SIGTERM.
    """

    host: str
    port: int
    workers: int
    threads: int
    grace: float
    model_name: str
    socket: str
    api_key_file: str | None = None
    cors: tuple[str, ...] = ()


class Web:
    """Gunicorn with our application, listening from the start; as a context, it ends with it.

    Parameters
    ----------
    options : WebOptions
        Where and how.
    environ : mapping
        Variables it inherits; ``WEBAPP_*`` for what has no option.

    Raises
    ------
    ConfigError
        The address cannot be had.
    """

    def __init__(self, options: WebOptions, environ: Mapping[str, str]) -> None:
        self._options = options
        self._sock = _bound(options.host, options.port)
        # Gunicorn reads until its end, which comes when this process ends, even by SIGKILL.
        theirs, self._lifeline = os.pipe()
        try:
            self._process = self._start(environ, theirs)
        finally:
            os.close(theirs)

    def _start(self, environ: Mapping[str, str], lifeline: int) -> subprocess.Popen[bytes]:
        options, fd = self._options, self._sock.fileno()
        told = {
            "WEBAPP_BIND": f"fd://{fd}",
            "WEBAPP_SOCKET": options.socket,
            "WEBAPP_MODEL_NAME": options.model_name,
            "WEBAPP_WORKERS": str(options.workers),
            "WEBAPP_THREADS": str(options.threads),
            "WEBAPP_GRACE": str(max(round(options.grace), 1)),
            "WEBAPP_LIFELINE": str(lifeline),
        }
        if options.api_key_file:
            told["WEBAPP_API_KEYS_FILE"] = options.api_key_file
        if options.cors:
            told["WEBAPP_CORS_ORIGINS"] = ",".join(options.cors)
        return subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", "python:webapp.gunicorn_conf", "webapp.wsgi"],
            env={**environ, **told},
            pass_fds=(fd, lifeline),
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for us
        )

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.wait()
        self._sock.close()
        os.close(self._lifeline)

    @property
    def address(self) -> str:
        """``http://host:port``."""
        host, port = self._sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}"

    @property
    def ended(self) -> int | None:
        """Its status; ``None`` while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Tell it to answer what runs and to end. Signal-safe, may be called again."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, with its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end; one that comes too late is killed."""
        try:
            self._process.wait(self._options.grace + LATE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()


def run_both(web: Web, supervisor: Supervisor) -> None:
    """Run until a signal, or until one of the two ends; then end the other.

    The API ends first: it takes no more requests while the engine answers those that run.
    Call it on the main thread.

    Raises
    ------
    MlxcelError
        The engine could not be loaded or died too often, or gunicorn ended by itself.
    """
    told = threading.Event()
    failed: list[BaseException] = []

    def supervise() -> None:
        try:
            supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised where the command ends
            failed.append(error)

    def on_signal(*_: object) -> None:
        if told.is_set():
            web.kill()
            supervisor.stop()
            supervisor.stop()
        told.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    engine = threading.Thread(target=supervise, name="mlxcel-supervisor")
    engine.start()
    try:
        while engine.is_alive() and web.ended is None and not told.is_set():
            told.wait(WATCH_SECONDS)
        status = web.ended
        web.stop()
        web.wait()
        supervisor.stop()
        engine.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]
    if status is not None and not told.is_set():
        raise EngineError(f"gunicorn {describe_exit(status)}: its log, above, says why")


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address; gunicorn listens at it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host} port {port}: {error.strerror or error}: choose another",
            param="port",
        ) from error
    made.listen(1024)
    return made
