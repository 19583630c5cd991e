"""Gunicorn's threaded worker, for clients that stall, and for errors in our one shape.

Gunicorn waits without end for the rest of a request, and for a client that reads nothing; so many
such clients as there are threads would stop a server. It also waits for clients to close their
side on the one thread that accepts connections, and writes errors as HTML.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import time
import uuid
from contextlib import suppress
from typing import Any

from gunicorn.http import errors as http_errors
from gunicorn.workers.gthread import ThreadWorker

from webapp.errors import ApiError
from webapp.limits import SlowClient

__all__ = ["Client", "Worker"]

REQUEST_SECONDS = 30.0
"""From a request's first byte to its last."""

STALL_SECONDS = 30.0
"""How long a client may read nothing of an answer that is ready for it."""

LINGER_SECONDS = 5.0
"""How long an unread request is read and dropped, so that its sender sees the answer."""

LINGER_BYTES = 64 * 2**20

STATUSES = (
    (SlowClient, 408, "Request Timeout"),
    (http_errors.LimitRequestLine, 414, "URI Too Long"),
    (http_errors.ExpectationFailed, 417, "Expectation Failed"),
    (http_errors.LimitRequestHeaders, 431, "Request Header Fields Too Large"),
    (http_errors.UnsupportedTransferCoding, 501, "Not Implemented"),
    (http_errors.ParseException, 400, "Bad Request"),
)


class Client(socket.socket):
    """A client's socket that loses patience.

    Attributes
    ----------
    due : float or None
        When, by `time.monotonic`, the request that is being read must have come.
    unread : bool
        Whether the client may still be sending what nobody will read.
    """

    due: float | None = None
    unread = False

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As a socket does it; raises `SlowClient` once the request is overdue."""
        if not flags and self.due is not None and self.gettimeout() is None:
            left = self.due - time.monotonic()
            if left <= 0 or not _ready(self, select.POLLIN, left):
                raise SlowClient
        return super().recv(size, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As a socket does it; a client that takes nothing for too long counts as gone."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.send(rest, flags | socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not _ready(self, select.POLLOUT, STALL_SECONDS):
                    raise ConnectionResetError(
                        errno.ECONNRESET,
                        "the client reads nothing",
                    ) from None

    def finish(self) -> None:
        """Close it; what was sent arrives even where the client has not sent all yet."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_WR)
            end = time.monotonic() + (LINGER_SECONDS if self.unread else 0.0)
            dropped = 0
            while dropped < LINGER_BYTES and _ready(self, select.POLLIN, end - time.monotonic()):
                data = super().recv(65536, socket.MSG_DONTWAIT)
                if not data:
                    break
                dropped += len(data)
        self.close()


class Worker(ThreadWorker):
    """The worker."""

    def handle(self, conn: Any) -> Any:
        """Serve a request, on a thread; all waiting for the client is done here."""
        if not isinstance(conn.sock, Client):
            conn.sock = Client(fileno=conn.sock.detach())
        conn.sock.due = time.monotonic() + REQUEST_SECONDS
        kept = super().handle(conn)
        if not kept:
            conn.sock.finish()
        return kept

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Take a connection back, on the thread that accepts."""
        if conn.sock.fileno() < 0:
            self.nr_conns -= 1
        else:
            super().finish_request(conn, fs)

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        try:
            read = conn.parser.finish_body(deadline=time.monotonic() + LINGER_SECONDS)
        except Exception:  # noqa: BLE001 - the answer has been sent: there is nobody to tell
            read = False
        conn.sock.unread = not read
        return bool(keepalive and read)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what never reached the application."""
        status, reason = 500, "Internal Server Error"
        for kind, *found in STATUSES:
            if isinstance(exc, kind):
                status, reason = found  # type: ignore[assignment]
                break
        if status == 500:
            name = uuid.uuid4().hex
            self.log.error("request failed, id %s", name, exc_info=exc)
            made = ApiError(
                500, f"an internal error, which the server's log has under the id {name}"
            )
        elif status == 408:
            made = SlowClient.answer()
        else:
            made = ApiError(400, f"this is no request that is understood: {str(exc)[:200]}")
        body = json.dumps(made.body()).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with suppress(OSError):
            client.sendall(head.encode() + body)
        client.unread = True


def _ready(sock: socket.socket, what: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(sock, what)
    return bool(poller.poll(max(seconds, 0.0) * 1000.0))
