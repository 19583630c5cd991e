"""The engine as the host sees it. Importing this module imports MLX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlxcel.engine.engine import Engine
from mlxcel.engine.facts import facts_of
from mlxcel.engine.prepare import build_engine, mtp_policy
from mlxcel.engine.worker import EngineThread, Watcher
from mlxcel.errors import RequestError
from mlxcel.front import Asked, Ticket, encode_prompt, parse_tool_call, token_texts
from mlxcel.remote.spec import EngineSpec

__all__ = ["EngineBackend"]


class EngineBackend:
    """An engine on its thread; see `mlxcel.remote.desk.Backend`.

    Parameters
    ----------
    spec : EngineSpec
        What to load.
    watcher : Watcher
        Is told about deliveries and failure.
    progress : callable
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    """

    def __init__(
        self, spec: EngineSpec, watcher: Watcher, progress: Callable[[str, int, int], None]
    ) -> None:
        self._thread = EngineThread(
            lambda: build_engine(spec.target, spec.drafter, spec.settings, progress), watcher
        )
        self._tokenizer = self._thread.call(lambda engine: engine.model.tokenizer)
        self.facts: dict[str, Any] = self._thread.call(facts_of) | {"drafter": spec.drafter}

    @property
    def running(self) -> int:
        """Rows that decode now."""
        return self._thread.running

    def begin(self, asked: Asked, ticket: Ticket) -> None:
        """Encode the prompt and queue the request; the ticket is told the rest."""
        self._thread.post(asked.request(encode_prompt(self._tokenizer, asked.prompt)), ticket)

    def cancel(self, ticket: Ticket) -> None:
        """End a request early, without waiting."""
        self._thread.cancel(ticket)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Answer a question by plain values.

        Raises
        ------
        RequestError
            There is no such question, or its argument is bad.
        """
        match name, list(arguments):
            case "encode", [prompt, [*tools]]:
                return encode_prompt(self._tokenizer, prompt, tools)
            case "decode", [[*ids]] if all(type(token) is int for token in ids):
                return str(self._tokenizer.decode(ids))
            case "token_texts", [[*ids]] if all(type(token) is int for token in ids):
                return token_texts(self._tokenizer, ids)
            case "parse_tool_call", [str(text), [*tools]]:
                return parse_tool_call(self._tokenizer, text, tools)
            case "mtp_policy", []:
                return self._thread.call(mtp_policy)
            case "metrics", []:
                return self._thread.call(Engine.snapshot)
        raise RequestError(
            f"{name!r:.50} with these arguments is no question to the engine: there are encode "
            "(a prompt, tools), decode and token_texts (token ids), parse_tool_call (a text, "
            "tools), mtp_policy, metrics and status"
        )

    def close(self) -> None:
        """Stop the engine's thread after the step it is in."""
        self._thread.close()
