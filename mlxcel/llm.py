"""The library's front door: load a model once, generate or stream from any thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine
from mlxcel.engine.worker import EngineThread, Ticket
from mlxcel.errors import EngineError, RequestError
from mlxcel.types import Chunk, Completion, Request, SamplingParams, Speculation

__all__ = ["AUTO", "LLM", "Prompt", "default_drafter", "load"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``)."""

AUTO = "auto"
"""The drafter that is taken when none is named; see `default_drafter`."""

T = TypeVar("T")
_PARAMS = frozenset(field.name for field in fields(SamplingParams))


def default_drafter(target: str | Path) -> str | None:
    """Name of the drafter that comes with a target: ``"demo"`` for ``"demo"``, else ``None``."""
    return "demo" if target == "demo" else None


def load(
    target: str | Path,
    drafter: str | Path | None = AUTO,
    *,
    config: Settings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LLM:
    """Load a model and its drafter.

    Parameters
    ----------
    target : str or Path
        A folder in mlx-lm or Hugging Face layout, a hub id, a GGUF file, or ``"demo"``.
    drafter : str, Path or None
        ``"lookup"`` for prompt lookup, ``"demo"`` for the MTP head that comes with the package,
        a folder made by ``mlxcel distill``, or a draft model given like ``target``. ``None`` or
        ``"none"`` loads none. Left out (``"auto"``), the target ``"demo"`` gets its packaged
        head and any other target none.
    config : Settings, optional
        Limits, steps and the form of the weights; by default what the ``MLXCEL_*`` variables
        say (``Settings.from_env``).
    progress : callable, optional
        Called with a label, the amount done and the total.

    Returns
    -------
    LLM
        Ready to generate.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    ConfigError
        A variable has a bad value, or does not exist.
    """
    settings = config or Settings.from_env()
    chosen = default_drafter(target) if drafter == AUTO else drafter
    return LLM(lambda: build_engine(target, chosen, settings, progress))


class LLM:
    """A loaded model. All methods may be called from any thread.

    Parameters
    ----------
    build : callable
        Makes the engine; it is called on the engine's own thread.
    """

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._thread = EngineThread(build)
        self._tokenizer = self._thread.call(lambda engine: engine.model.tokenizer)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (mlx-lm's ``TokenizerWrapper``)."""
        return self._tokenizer

    def close(self) -> None:
        """Stop the engine and free its memory; unfinished requests end with an error."""
        self._thread.close()

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function of the engine on the engine's thread; for tools and measuring."""
        return self._thread.call(function)

    def mtp_policy(self) -> list[dict[str, Any]]:
        """What the adaptive policy of the loaded pairing rests on, by block width.

        Returns
        -------
        list of dict
            One for each width that a request has asked for, in order, of JSON values: ``state``
            (forced, profiling, settled, exactness_declined), ``run``, ``reason``, ``veto``, the
            names and the figures, and when it was settled and is due again (seconds since
            1970). Empty before the first request that may speculate, without a drafter, and
            where ``mtp_adaptive`` is off.

        Raises
        ------
        EngineError
            The engine is closed.
        """

        def read(engine: Engine) -> list[dict[str, Any]]:
            governor = engine.scheduler.governor
            return [] if governor is None else governor.snapshot()

        return self.call(read)

    def load_widths(self) -> dict[str, Any]:
        """What rounds of several rows cost, and how wide they are for it.

        Returns
        -------
        dict
            Of JSON values but for the integer keys of ``holders`` (width held by number of
            rows, 1: classic decode), ``trials`` and ``excluded``; ``cells`` has rows, width,
            rounds, seconds and tokens per second. Row counts above 8 stand for a few. Empty
            before the first request that may speculate, without a drafter, and where
            ``mtp_block_controller`` is ``"requested"``.

        Raises
        ------
        EngineError
            The engine is closed.
        """

        def read(engine: Engine) -> dict[str, Any]:
            governor = engine.scheduler.governor
            crowd = None if governor is None else governor.crowd
            return {} if crowd is None else crowd.snapshot()

        return self.call(read)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Turn a prompt into token ids; chat messages go through the chat template.

        Raises
        ------
        RequestError
            The prompt is of another kind, or the template refuses the messages.
        """
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt))
        kinds = "a prompt is text, token ids, or chat messages"
        if not isinstance(prompt, Iterable):
            raise RequestError(f"{kinds}, got {prompt!r}", param="prompt")
        items = list(prompt)
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return tuple(int(item) for item in items)  # type: ignore[call-overload]
        if not all(isinstance(item, Mapping) for item in items):
            raise RequestError(f"{kinds}, not a mixture", param="prompt")
        if not self._tokenizer.has_chat_template:
            raise RequestError("the model has no chat template: give text", param="messages")
        try:
            ids = self._tokenizer.apply_chat_template(
                [dict(item) for item in items],  # type: ignore[call-overload]
                add_generation_prompt=True,
            )
        except Exception as error:  # templates raise what they like
            message = f"the chat template refuses the messages: {error}"
            raise RequestError(message, param="messages") from error
        return tuple(ids)

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
            Fields of `SamplingParams`.

        Raises
        ------
        RequestError
            A parameter is bad or does not fit the model.
        EngineError
            The engine failed or was closed.
        """
        for chunk in self.stream(prompt, speculation=speculation, width=width, **params):
            if chunk.completion is not None:
                return _checked(chunk.completion)
        raise EngineError("the engine ended a request without a completion")

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        speculation: Speculation = "auto",
        width: int | None = None,
        **params: Any,
    ) -> list[Completion]:
        """Generate answers to several prompts, decoded together; see `generate`."""
        tickets: list[Ticket] = []
        try:
            for prompt in prompts:
                tickets.append(self._submit(prompt, speculation, width, params))
            return [_checked(self._finished(ticket)) for ticket in tickets]
        except BaseException:
            for ticket in tickets:
                self._thread.cancel(ticket)
            raise

    def stream(
        self,
        prompt: Prompt,
        *,
        speculation: Speculation = "auto",
        width: int | None = None,
        **params: Any,
    ) -> Iterator[Chunk]:
        """Generate an answer piece by piece; the last chunk carries the completion.

        Closing the iterator cancels the request. See `generate` for the parameters.
        """
        ticket = self._submit(prompt, speculation, width, params)
        chunks = self._chunks(ticket)
        # A generator that was never begun runs no `finally` of its own.
        weakref.finalize(chunks, self._thread.cancel, ticket).atexit = False
        return chunks

    def _chunks(self, ticket: Ticket) -> Iterator[Chunk]:
        finished = False
        try:
            while not finished:
                item = ticket.chunks.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.completion is not None
                yield item
        finally:
            if not finished:
                self._thread.cancel(ticket)

    def _finished(self, ticket: Ticket) -> Completion:
        for chunk in self._chunks(ticket):
            if chunk.completion is not None:
                return chunk.completion
        raise EngineError("the engine ended a request without a completion")

    def _submit(
        self, prompt: Prompt, speculation: Speculation, width: int | None, params: dict[str, Any]
    ) -> Ticket:
        if unknown := sorted(params.keys() - _PARAMS):
            raise RequestError(
                f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(_PARAMS))}",
                param=unknown[0],
            )
        request = Request(
            prompt_ids=self.encode(prompt),
            params=SamplingParams(**params),
            speculation=speculation,
            width=width,
        )
        return self._thread.submit(request)


def _checked(completion: Completion) -> Completion:
    if completion.finish_reason == "error":
        raise EngineError(completion.error or "the request failed")
    return completion
