"""What a request may cost, checked before any work is done."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mlxcel.errors import RequestError
from webapp.config import WebConfig
from webapp.errors import ApiError

__all__ = ["Slots", "SlowClient", "budget", "gone"]


class SlowClient(Exception):
    """The client takes too long to send its request."""

    @staticmethod
    def answer() -> ApiError:
        """What it is told."""
        return ApiError(408, "the request did not come in time: send it faster", code="slow")


class Slots:
    """So many requests generate at once; one more is refused, and never waits.

    Parameters
    ----------
    count : int
        How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = threading.BoundedSemaphore(count)

    def take(self) -> Callable[[], None]:
        """A place; call what is returned to give it back, once or more often.

        Raises
        ------
        ApiError
            429: none is free.
        """
        if not self._free.acquire(blocking=False):
            raise ApiError(
                429, f"{self.count} requests are being answered, which is the limit: try again soon"
            )
        lock, given = threading.Lock(), [False]

        def give_back() -> None:
            with lock:
                if not given[0]:
                    given[0] = True
                    self._free.release()

        return give_back


def budget(
    asked: int | None, default: int, prompt: int, context: int | None, config: WebConfig, name: str
) -> int:
    """Tokens that an answer may have.

    Parameters
    ----------
    asked : int or None
        What the request names; ``None``: nothing.
    default : int
        What then holds, or what the context has room for, if that is less.
    prompt : int
        Tokens of the prompt.
    context : int or None
        Tokens of the model's context.
    config : WebConfig
        Ceilings.
    name : str
        Of the field.

    Raises
    ------
    RequestError
        A ceiling is passed; names both numbers.
    """
    if prompt > config.max_prompt_tokens:
        raise RequestError(
            f"the prompt has {prompt} tokens, the limit is {config.max_prompt_tokens}: shorten it",
            param="prompt",
        )
    if context is not None and prompt >= context:
        raise RequestError(
            f"the prompt has {prompt} tokens, the model's context {context}: shorten it",
            param="prompt",
        )
    if asked is None:
        room = default if context is None else context - prompt
        return min(default, room, config.max_tokens)
    if asked > config.max_tokens:
        raise RequestError(
            f"{name} is {asked}, the limit is {config.max_tokens}: ask for less", param=name
        )
    if context is not None and prompt + asked > context:
        raise RequestError(
            f"the prompt of {prompt} tokens and {name} {asked} make {prompt + asked}, but the "
            f"model's context is {context} tokens: shorten one of them",
            param=name,
        )
    return asked


def gone(environ: Mapping[str, Any]) -> bool:
    """Whether the client has closed its connection; ``False`` where that cannot be told."""
    sock = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
    if not isinstance(sock, socket.socket):
        return False
    try:
        # A socket with a timeout would wait in recv whatever the flags say.
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        if not poller.poll(0):
            return False
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, ValueError):  # nothing to read after all; or TLS takes no flags
        return sock.fileno() < 0
    except OSError:
        return True
