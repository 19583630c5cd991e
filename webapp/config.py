"""Settings of the web application: `WebConfig`, from ``WEBAPP_*`` variables or made directly.

They are not ``MLXCEL_*`` settings: those describe the engine, which runs in another process.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mlxcel.errors import ConfigError

__all__ = ["PREFIX", "WebConfig"]

PREFIX = "WEBAPP_"
KEPT_THREADS = 8
"""Threads that never generate, so that health and metrics are answered under load."""


def _option(default: Any, help: str, low: float | None = None, high: float = 0.0) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """How requests are taken and what they may ask for; wrong values cannot be made.

    Attributes
    ----------
    socket : str or None
        The engine's socket; ``None``: the default of `mlxcel.EngineClient`.
    model_name : str or None
        What the model is called; ``None``: what the engine calls it, which is always accepted.
    api_keys : tuple of str
        Any of them opens the API; none: no key is asked for.
    cors_origins : tuple of str
        Origins whose pages may use the API; ``"*"`` is every one.
    max_body_bytes, max_tokens, max_prompt_tokens, max_choices, max_running : int
        Ceilings; see the help of each.
    default_tokens : int
        ``max_tokens`` of chat requests that name none, if the context has room for it.
    request_timeout, keep_alive, engine_wait : float
        Seconds.

    Raises
    ------
    ConfigError
        A bad value.
    """

    socket: str | None = _option(None, "The engine's socket.")
    model_name: str | None = _option(None, "Name of the model for clients.")
    api_keys: tuple[str, ...] = _option((), "Keys, separated by commas.")
    cors_origins: tuple[str, ...] = _option((), "Origins, separated by commas; `*` is every one.")
    max_body_bytes: int = _option(4 * 2**20, "Bytes of a body at most.", 1024, 2**30)
    max_tokens: int = _option(32768, "Tokens of an answer at most.", 1, 2**31 - 1)
    max_prompt_tokens: int = _option(131072, "Tokens of a prompt at most.", 1, 2**31 - 1)
    max_choices: int = _option(8, "Answers of one request at most (prompts times n).", 1, 64)
    max_running: int = _option(
        120, "Requests that generate at once in this worker; more get 429. Less than there are "
        "threads, so that `/health` is always answered.", 1, 4096)  # fmt: skip
    default_tokens: int = _option(1024, "`max_tokens` of chats that name none.", 1, 2**31 - 1)
    request_timeout: float = _option(600.0, "Seconds for an answer at most.", 0.1, 604800.0)
    keep_alive: float = _option(10.0, "Seconds of silence before a comment.", 0.05, 3600.0)
    engine_wait: float = _option(1.0, "Seconds to wait for an engine that starts.", 0.0, 3600.0)

    def __post_init__(self) -> None:
        for spec in fields(self):
            _check(spec.name, getattr(self, spec.name), spec.metadata)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> WebConfig:
        """A configuration from explicit arguments, else ``WEBAPP_*``, else the defaults.

        ``WEBAPP_API_KEYS_FILE`` names a file of keys, one a line; ``#`` begins a comment.

        Raises
        ------
        ConfigError
            A bad value, an unknown variable, or a file of keys that cannot be read.
        """
        known = {PREFIX + spec.name.upper(): spec for spec in fields(cls)}
        extra = {PREFIX + "API_KEYS_FILE", PREFIX + "LIFELINE", PREFIX + "BIND"}
        extra |= {PREFIX + "WORKERS", PREFIX + "THREADS", PREFIX + "GRACE"}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if name in known:
                values[known[name].name] = _parsed(name, text, known[name].default)
            elif name.startswith(PREFIX) and name not in extra:
                near = difflib.get_close_matches(name, [*known, *extra], n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"there is no variable {name}{hint}", param=name)
        if (threads := environ.get(PREFIX + "THREADS", "")).isdecimal():
            values.setdefault("max_running", max(int(threads) - KEPT_THREADS, 1))
        if path := environ.get(PREFIX + "API_KEYS_FILE"):
            values["api_keys"] = (*values.get("api_keys", ()), *read_keys(path))
        return cls(**(values | overrides))


def read_keys(path: str) -> tuple[str, ...]:
    """Keys in a file, one a line.

    Raises
    ------
    ConfigError
        It cannot be read, or holds no key.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of API keys {path} cannot be read: {error}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"the file of API keys {path} holds no key: write one a line")
    return keys


def _parsed(name: str, text: str, default: Any) -> Any:
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if not isinstance(default, (int, float)):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, got {text!r}", param=name) from None


def _check(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low, high = metadata["low"], metadata["high"]
    if low is not None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} must be a number, got {value!r}", param=name)
        if not low <= value <= high:
            raise ConfigError(f"{name} must be between {low} and {high}, got {value}", param=name)
    if name in ("api_keys", "cors_origins"):
        _check_texts(name, value)


def _check_texts(name: str, value: Any) -> None:
    if isinstance(value, str) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"{name} must be a tuple of texts", param=name)
    for each in value:
        if not each.isascii() or not each.isprintable() or " " in each:
            raise ConfigError(f"{name} holds printable ASCII without blanks only", param=name)
