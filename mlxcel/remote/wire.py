"""Frames: four bytes of length, big-endian, and a msgpack array ``[kind, ...]``.

The first message of either side is a hello with the protocol version. Its form never
changes, so that two versions can at least tell each other which they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from mlxcel import __version__
from mlxcel.errors import RequestError

__all__ = [
    "ANSWER_LIMIT",
    "PROTOCOL",
    "REQUEST_LIMIT",
    "Frames",
    "Message",
    "WireError",
    "hello",
    "mismatch",
    "pack",
]

PROTOCOL = 3
"""Raised whenever a message changes."""

REQUEST_LIMIT = 32 * 2**20
ANSWER_LIMIT = 512 * 2**20
"""Bytes of one frame, to the engine and from it: a completion repeats all log-probabilities."""

_HEAD = 4
Message = list[Any]


class WireError(Exception):
    """Bytes that are no message of this protocol; the connection cannot go on."""


def _plain(value: Any) -> Any:
    """Scalars of array libraries as Python's."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to another process")


_packer_options: Mapping[str, Any] = {"default": _plain, "use_bin_type": True}


def pack(message: Message, limit: int) -> bytes:
    """One frame.

    Parameters
    ----------
    message : list
        Kind first.
    limit : int
        Bytes at most.

    Raises
    ------
    RequestError
        A value has no form in msgpack (integers have 64 bits), or the frame is too long.
    """
    try:
        body: bytes = msgpack.packb(message, **_packer_options)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"the request cannot be sent to the engine: {error}") from error
    if len(body) > limit:
        raise RequestError(
            f"a message of {len(body)} bytes is above the limit of {limit} bytes: send less"
        )
    return len(body).to_bytes(_HEAD, "big") + body


class Frames:
    """Puts messages together from bytes as they come.

    Parameters
    ----------
    limit : int
        Bytes of one frame at most; longer ones are refused before they are read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes; return the messages that are complete with them.

        Raises
        ------
        WireError
            They are no frames of messages.
        """
        self._bytes += data
        found = []
        while len(self._bytes) >= _HEAD:
            size = int.from_bytes(self._bytes[:_HEAD], "big")
            if not 0 < size <= self._limit:
                raise WireError(
                    f"a frame says it has {size} bytes; between 1 and {self._limit} are allowed"
                )
            if len(self._bytes) < _HEAD + size:
                break
            body = bytes(self._bytes[_HEAD : _HEAD + size])
            del self._bytes[: _HEAD + size]
            found.append(_unpack(body))
        return found


def _unpack(body: bytes) -> Message:
    try:
        message = msgpack.unpackb(body, strict_map_key=False)
    except Exception as error:  # msgpack and the types it makes raise what they like
        raise WireError(f"a frame is not msgpack: {error or type(error).__name__}") from error
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise WireError("a message is an array that begins with its kind")
    return message


def hello(**more: Any) -> Message:
    """The first message of either side."""
    return ["hello", {"protocol": PROTOCOL, "version": __version__} | more]


def mismatch(message: Message, us: str, them: str) -> str | None:
    """Why the other side's first message is not acceptable; ``None`` if it is.

    Parameters
    ----------
    message : list
        What came first.
    us, them : str
        What to call the two sides.
    """
    facts = message[1] if len(message) > 1 else None
    if message[0] != "hello" or not isinstance(facts, dict):
        return f"the {them}'s first message must be a hello, got {message[0][:40]!r}"
    theirs = facts.get("protocol")
    if theirs == PROTOCOL:
        return None
    return (
        f"the {them} speaks protocol {theirs!r} (mlxcel {facts.get('version', '?')}), the {us} "
        f"protocol {PROTOCOL} (mlxcel {__version__}): run the same version on both sides"
    )
