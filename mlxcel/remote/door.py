"""The engine process's sockets: who comes, who can be read, who takes what waits for it.

All methods run on the host's thread, except `Door.wake`.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from mlxcel.errors import CapacityError, MlxcelError, RequestError
from mlxcel.remote.peer import Job, Peer
from mlxcel.remote.wire import Message, WireError
from mlxcel.remote.wire_types import encode_error

__all__ = ["Door"]

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""How long the last words may take when the process ends."""


class Door:
    """Connections at a listening socket.

    Parameters
    ----------
    listener : socket
        Listening.
    max_peers : int
        Connections at most.
    welcome : callable
        Makes a `Peer` of a connected socket.
    take : callable
        Is given each message with its peer; may raise `WireError`.
    withdraw : callable
        Is given each request whose client is gone.
    """

    def __init__(
        self,
        listener: socket.socket,
        max_peers: int,
        *,
        welcome: Callable[[socket.socket], Peer],
        take: Callable[[Peer, Message], None],
        withdraw: Callable[[Job], None],
    ) -> None:
        self.peers: set[Peer] = set()
        self._listener = listener
        self._max_peers = max_peers
        self._welcome = welcome
        self._take = take
        self._withdraw = withdraw
        self._selector = selectors.DefaultSelector()
        self._woken = False
        self._wake_in, self._wake_out = socket.socketpair()
        listener.setblocking(False)
        for sock in (listener, self._wake_in):
            self._selector.register(sock, selectors.EVENT_READ)

    def wake(self) -> None:
        """End the `wait` that runs or comes next. Any thread."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):
                self._wake_out.send(b"\0")

    def wait(self, seconds: float | None) -> None:
        """Wait for something to happen, and serve who has something to say."""
        for key, events in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._greet()
            elif key.fileobj is self._wake_in:
                self._wake_in.recv(64)
            else:
                self._serve(key.data, events)
        self._woken = False  # before the caller looks, so that nothing is overlooked

    def close(self) -> None:
        """Send the last words, then close everything."""
        end = time.monotonic() + FLUSH_SECONDS
        while any(not peer.idle for peer in self.peers) and time.monotonic() < end:
            for peer in list(self.peers):
                self.try_flush(peer)
            time.sleep(0.005)
        for peer in list(self.peers):
            self.lose(peer)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _greet(self) -> None:
        """Take connections; those above the limit are told so."""
        with suppress(BlockingIOError):
            while True:
                try:
                    sock, _ = self._listener.accept()
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    log.error("a connection could not be taken: %s", error)
                    time.sleep(0.01)  # out of descriptors: no busy loop while it lasts
                    return
                peer = self._welcome(sock)
                self.peers.add(peer)
                self._watch(peer, selectors.EVENT_READ)
                if len(self.peers) > self._max_peers:
                    said = f"the engine has {self._max_peers} connections and takes no more now"
                    self.refuse(peer, CapacityError(said))

    def _serve(self, peer: Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                for message in peer.read():
                    if not peer.closing:
                        self._take(peer, message)
            self._flush(peer)
        except WireError as error:
            self.refuse(peer, RequestError(f"the engine does not understand its client: {error}"))
        except OSError:
            self.lose(peer)

    def try_flush(self, peer: Peer) -> None:
        """Send a client what it takes now; one that is gone is closed."""
        try:
            if not peer.closed:
                self._flush(peer)
        except OSError:
            self.lose(peer)

    def _flush(self, peer: Peer) -> None:
        peer.flush()
        if peer.closing and peer.idle:
            self.lose(peer)
            return
        events = 0 if peer.congested else selectors.EVENT_READ
        events |= 0 if peer.idle else selectors.EVENT_WRITE
        if events != peer.watched:
            self._watch(peer, events)

    def _watch(self, peer: Peer, events: int) -> None:
        """Wait for other events of a client; for none, it is not in the selector at all."""
        if not peer.watched:
            self._selector.register(peer.sock, events, peer)
        elif events:
            self._selector.modify(peer.sock, events, peer)
        else:
            self._selector.unregister(peer.sock)
        peer.watched = events

    def refuse(self, peer: Peer, error: MlxcelError) -> None:
        """Tell one client what is wrong with it, then close its connection."""
        log.warning("a client is sent away: %s", error.message)
        self._abandon(peer)
        peer.say(["refused", encode_error(error)])
        peer.closing = True
        self.try_flush(peer)

    def lose(self, peer: Peer) -> None:
        """A connection has ended: so have its requests."""
        if peer.closed:
            return
        peer.closed = True
        self.peers.discard(peer)
        if peer.watched:
            self._watch(peer, 0)
        peer.sock.close()
        self._abandon(peer)

    def _abandon(self, peer: Peer) -> None:
        for job in list(peer.jobs.values()):
            self._withdraw(job)
        peer.jobs.clear()
