"""What every front door shares: prompts, parameters, and answers read from a queue.

A `Front` says how a request is submitted and cancelled; generating and streaming are the
same for a model in this process (`LLM`) and in another one (`EngineClient`). No MLX here.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mlxcel.errors import CapacityError, RequestError
from mlxcel.prompts import Prompt, encode_prompt, parse_tool_call, plain_prompt, token_texts
from mlxcel.streams import Pieces, Stream
from mlxcel.types import Chunk, Completion, Request, SamplingParams, Speculation

__all__ = [
    "AUTO",
    "Asked",
    "Front",
    "Prompt",
    "Stream",
    "Ticket",
    "default_drafter",
    "encode_prompt",
    "parse_tool_call",
    "plain_prompt",
    "token_texts",
]

AUTO = "auto"
"""The drafter that is taken when none is named; see `default_drafter`."""

_PARAMS = frozenset(spec.name for spec in fields(SamplingParams))
_OPTIONS = frozenset(spec.name for spec in fields(Request)) - {"prompt_ids", "params"}

F = TypeVar("F", bound="Front")


def default_drafter(target: str | Path) -> str | None:
    """Name of the drafter that comes with a target: ``"demo"`` for ``"demo"``, else ``None``."""
    return "demo" if target == "demo" else None


class Ticket:
    """A submitted request and its chunks, in order. One reader.

    The four methods are called on the thread that has the news, which never waits: the
    queue is unbounded.
    """

    def __init__(self) -> None:
        self.chunks: Pieces = queue.SimpleQueue()
        self.request_id: Future[int] = Future()
        self.withdrawn = False  # cancelled, perhaps before the engine saw it

    def accept(self, request_id: int) -> None:
        """The engine has taken the request."""
        self.request_id.set_result(request_id)

    def refuse(self, error: BaseException) -> None:
        """The engine has not taken the request."""
        self.request_id.set_exception(error)

    def deliver(self, chunk: Chunk) -> None:
        """A piece of the answer."""
        self.chunks.put(chunk)

    def fail(self, error: BaseException) -> None:
        """No more pieces will come."""
        self.chunks.put(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request before its prompt has been turned into token ids.

    Attributes
    ----------
    prompt : Prompt
        As it was given.
    params : SamplingParams
        How tokens are chosen.
    options : mapping
        The other fields of `Request`.
    stream : bool
        Whether anyone reads the pieces; else the last chunk is enough.
    """

    prompt: Prompt
    params: SamplingParams
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = True

    def request(self, prompt_ids: tuple[int, ...]) -> Request:
        """The request for the engine.

        Raises
        ------
        RequestError
            An option is bad or unknown.
        """
        _refuse_unknown(self.options, _OPTIONS)
        return Request(prompt_ids=prompt_ids, params=self.params, **self.options)


def _refuse_unknown(given: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(given.keys() - known):
        raise RequestError(
            f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(known))}",
            param=unknown[0],
        )


def _asked(
    prompt: Prompt,
    speculation: Speculation,
    width: int | None,
    more: dict[str, Any],
    *,
    stream: bool,
) -> Asked:
    _refuse_unknown(more, _PARAMS | _OPTIONS)
    options = {name: value for name, value in more.items() if name in _OPTIONS}
    params = {name: value for name, value in more.items() if name in _PARAMS}
    return Asked(
        prompt=prompt,
        params=SamplingParams(**params),
        options={"speculation": speculation, "width": width} | options,
        stream=stream,
    )


class Front(ABC):
    """Generates and streams. All methods may be called from any thread."""

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End; unfinished requests end with an error."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Names and abilities of the model; see `mlxcel.engine.facts.facts_of`."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes chat messages."""
        return bool(self.facts["has_chat_template"])

    @abstractmethod
    def encode(self, prompt: Prompt, *, tools: Sequence[Any] = ()) -> tuple[int, ...]:
        """Turn a prompt into token ids; chat messages go through the chat template.

        Parameters
        ----------
        prompt : Prompt
            What to encode.
        tools : sequence of dict
            Descriptions of functions for the chat template, in OpenAI's form.

        Raises
        ------
        RequestError
            The prompt is of another kind, or the template refuses the messages.
        """

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""

    @abstractmethod
    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each token by itself; half a character is U+FFFD."""

    @abstractmethod
    def parse_tool_call(self, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
        """Calls in a text that the model wrote between its marks of a tool call.

        Returns
        -------
        list of dict
            ``name`` (str) and ``arguments`` (dict) of each.

        Raises
        ------
        RequestError
            It is no call, or only a part of one; or the model has no form for calls.
        """

    @abstractmethod
    def mtp_policy(self) -> list[dict[str, Any]]:
        """What the adaptive policy of the loaded pairing rests on, by block width.

        Returns
        -------
        list of dict
            One for each width that a request has asked for, in order, of JSON values: ``state``
            (forced, profiling, settled, exactness_declined; static where ``mtp_adaptive`` is
            off), ``run``, ``reason``, ``veto``, the names and the figures, when it was settled
            and is due again (seconds since 1970), what the static gate says (``gate``) and what
            the probe found (``exactness``). Empty without a drafter and before the first request
            that may speculate.

        Raises
        ------
        EngineError
            The engine is closed.
        """

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Counters and histograms since the engine was made, and its present state.

        Returns
        -------
        dict
            JSON values, times in seconds; see `mlxcel.engine.snapshot.snapshot_of`.

        Raises
        ------
        EngineError
            The engine is closed.
        """

    @abstractmethod
    def _submit(self, asked: Asked) -> Ticket:
        """Hand a request to the engine; return when it has taken it."""

    @abstractmethod
    def _cancel(self, ticket: Ticket) -> None:
        """End a request early; never waits for the engine, and may be called twice."""

    def generate(
        self,
        prompt: Prompt,
        *,
        speculation: Speculation = "auto",
        width: int | None = None,
        **params: Any,
    ) -> Completion:
        """Generate a whole answer.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of messages
            See `encode`.
        speculation : {"auto", "on", "off"}
            Whether to speculate; the output is the same.
        width : int, optional
            Block width K: 1 bonus token and K-1 drafts.
        **params
            Fields of `SamplingParams`, and the other fields of `Request`.

        Raises
        ------
        RequestError
            A parameter is bad or does not fit the model.
        CapacityError
            The engine takes no more requests now.
        ExactnessError
            ``speculation="on"``, and the probe found that the width changes the output here.
        EngineError
            The engine failed or was closed.
        """
        return self.generate_many([prompt], speculation=speculation, width=width, **params)[0]

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        speculation: Speculation = "auto",
        width: int | None = None,
        **params: Any,
    ) -> list[Completion]:
        """Generate answers to several prompts, decoded together; see `generate`.

        More prompts than the engine lets wait are submitted as others end.
        """
        tickets: list[Ticket] = []
        done: list[Completion] = []
        try:
            for prompt in prompts:
                asked = _asked(prompt, speculation, width, params, stream=False)
                self._submit_after(asked, tickets, done)
            done += [_checked(self._finished(ticket)) for ticket in tickets[len(done) :]]
            return done
        except BaseException:
            for ticket in tickets:
                self._cancel(ticket)
            raise

    def _submit_after(self, asked: Asked, tickets: list[Ticket], done: list[Completion]) -> None:
        """Add a ticket; where the queue is full, wait for the oldest of these requests first."""
        while True:
            try:
                tickets.append(self._submit(asked))
                return
            except CapacityError:
                if len(done) == len(tickets):  # none of them is in the way
                    raise
                done.append(_checked(self._finished(tickets[len(done)])))

    def stream(
        self,
        prompt: Prompt,
        *,
        speculation: Speculation = "auto",
        width: int | None = None,
        pieces: bool = True,
        **params: Any,
    ) -> Stream:
        """Generate an answer piece by piece; the last chunk carries the completion.

        Closing the stream cancels the request. See `generate` for the parameters; without
        ``pieces`` an engine in another process sends the last chunk alone.
        """
        return self._chunks(self._submit(_asked(prompt, speculation, width, params, stream=pieces)))

    def _chunks(self, ticket: Ticket) -> Stream:
        return Stream(ticket.chunks, partial(self._cancel, ticket))

    def _finished(self, ticket: Ticket) -> Completion:
        return self._chunks(ticket).completion()


def _checked(completion: Completion) -> Completion:
    if completion.finish_reason == "error":
        raise completion.failure()
    return completion
