"""The engine process: ``python -m mlxcel.remote.child LIFELINE LISTENER``.

Two descriptors come from the supervisor: a socket pair for messages, and the listening
socket, which outlives this process. The lifeline ends when the supervisor does, however it
does, and this process with it. Clients are greeted before MLX is imported.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mlxcel.errors import EngineError, MlxcelError
from mlxcel.remote.host import Host
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.wire import ANSWER_LIMIT, REQUEST_LIMIT, Frames, WireError, pack

if TYPE_CHECKING:
    from mlxcel.remote.backend import EngineBackend

log = logging.getLogger(__name__)

SPARE_DESCRIPTORS = 64
MOST_DESCRIPTORS = 8192


class Lifeline:
    """Messages to the supervisor, and its end as ours.

    Parameters
    ----------
    sock : socket
        Of a socket pair.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent = b""

    def spec(self) -> EngineSpec:
        """Wait for what to load."""
        frames = Frames(REQUEST_LIMIT)
        while True:
            data = self._sock.recv(65536)
            if not data:
                raise SystemExit(os.EX_UNAVAILABLE)
            for message in frames.feed(data):
                return EngineSpec.from_plain(message[1])

    def watch(self) -> None:
        """From now on, end with the supervisor."""
        threading.Thread(target=self._watch, name="mlxcel-lifeline", daemon=True).start()

    def tell(self, state: dict[str, Any]) -> None:
        """Say a state; never waits, so a supervisor that sleeps delays nobody."""
        self._unsent += pack(["state", state], ANSWER_LIMIT)
        with suppress(OSError):
            sent = self._sock.send(self._unsent, socket.MSG_DONTWAIT)
            self._unsent = self._unsent[sent:]

    def _watch(self) -> None:
        with suppress(OSError):
            while self._sock.recv(4096):
                pass
        os._exit(os.EX_UNAVAILABLE)


def raise_descriptor_limit() -> int:
    """Allow as many descriptors as the system does; return how many clients that is for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    limit = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MOST_DESCRIPTORS)
    return max(limit - SPARE_DESCRIPTORS, 1)


def _load(spec: EngineSpec, host: Host, loaded: list[EngineBackend]) -> None:
    try:
        from mlxcel.remote.backend import EngineBackend

        backend = EngineBackend(spec, host, host.progress)
    except MlxcelError as error:
        host.load_failed(error)
    except Exception as error:
        log.exception("the model could not be loaded")
        host.failed(f"the model could not be loaded: {type(error).__name__}: {error}")
    else:
        loaded.append(backend)
        host.ready(backend)


def main(lifeline_fd: int, listener_fd: int) -> int:
    """Serve until told to end; return the exit status."""
    lifeline = Lifeline(socket.socket(fileno=lifeline_fd))
    try:
        spec = lifeline.spec()
    except (WireError, KeyError, TypeError) as error:
        raise EngineError(f"the supervisor's message is not understood: {error}") from error
    logging.getLogger("mlxcel").setLevel(spec.log_level)
    lifeline.watch()
    host = Host(
        socket.socket(fileno=listener_fd),
        buffer=spec.settings.client_buffer,
        drain_seconds=spec.drain_seconds,
        on_state=lifeline.tell,
        max_peers=raise_descriptor_limit(),
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the supervisor
    signal.signal(signal.SIGTERM, lambda *_: host.drain())
    loaded: list[EngineBackend] = []
    threading.Thread(target=_load, args=(spec, host, loaded), daemon=True).start()
    try:
        status = host.run()
    except Exception:
        log.exception("the host has failed")
        return os.EX_SOFTWARE
    if loaded and status == os.EX_OK:
        loaded[0].close()
    return status


if __name__ == "__main__":
    logging.basicConfig(format="mlxcel engine: %(levelname)s: %(message)s")
    code = main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    os._exit(code)  # a thread may still be loading, which nobody waits for
