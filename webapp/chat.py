"""``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, jsonify

from mlxcel.types import Chunk, Completion
from webapp.described import describe
from webapp.engine import holder
from webapp.generation import Generation, check_model
from webapp.reports import chat_logprobs, ids_of, timings, tokens_of, usage
from webapp.schemas import parse
from webapp.schemas_chat import ChatRequest
from webapp.sse import DONE, frame
from webapp.turns import Call, Turn, check_choices

blueprint = Blueprint("chat", __name__)


@blueprint.post("/v1/chat/completions")
@describe("Continue a conversation.", request=ChatRequest, streams=True)
def chat_completions() -> Response:
    """Answer, at once or as a stream."""
    asked = parse(ChatRequest)
    name = check_model(asked.model)
    count = check_choices(asked.n or 1)
    with Generation() as generation:
        messages = [message.plain() for message in asked.messages]
        turn = Turn(messages, asked.offered(), must_call=asked.must_call)
        arguments = asked.params() | asked.options(holder().config.request_timeout)
        field = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
        arguments["max_tokens"] = turn.budget(asked.budget, field)
        arguments["seed"] = asked.seed
        if asked.logprobs:
            arguments["logprobs"] = asked.top_logprobs or 0
        pieces = bool(asked.stream or asked.return_tokens)
        generation.add_choices(turn.prompt_ids, count, arguments, pieces=pieces)
        answer = Answer(name, asked, turn, count)
        if asked.stream:
            return generation.respond(generation.frames(answer.write, answer.closing))
        return jsonify(answer.whole(generation))


class Answer:
    """Writes what the model says in OpenAI's form.

    Parameters
    ----------
    model : str
        Its name.
    asked : ChatRequest
        The request.
    turn : Turn
        Reads texts and calls.
    count : int
        Number of choices.
    """

    def __init__(self, model: str, asked: ChatRequest, turn: Turn, count: int) -> None:
        self._asked, self._turn, self._count = asked, turn, count
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model,
            "system_fingerprint": None,
        }  # fmt: skip
        self._splitters = [turn.splitter() for _ in range(count)]
        self._calls = [0] * count
        self._begun = [False] * count
        self._done: dict[int, Completion] = {}
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._holder = holder()

    # -- streams ----------------------------------------------------------------------

    def write(self, index: int, chunk: Chunk) -> Iterator[str]:
        """Frames of a chunk."""
        if not self._begun[index]:
            self._begun[index] = True
            yield self._frame(index, {"role": "assistant", "content": ""})
        done = chunk.completion
        parts = self._turn.parts(self._splitters[index], chunk.text, done is not None)
        deltas: list[dict[str, Any]] = []
        for part in parts:
            deltas.append({"content": part} if isinstance(part, str) else self._delta(index, part))
        more = self._extras(chunk)
        if more and not deltas:
            deltas.append({"content": ""})
        for delta in deltas:
            yield self._frame(index, delta, **more)
            more = {}
        if done is not None:
            self._done[index] = done
            reason = finish_reason(done, self._calls[index])
            yield self._frame(index, {}, reason=reason, seed=done.seed)

    def closing(self) -> Iterator[str]:
        """The end of a stream."""
        if self._with_usage:
            yield frame(self._object([]) | {"usage": self._usage(), "timings": self._timings()})
        yield DONE

    def _frame(
        self, index: int, delta: dict[str, Any], *, reason: str | None = None, **more: Any
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        made = self._object([choice | more])
        if self._with_usage:
            made["usage"] = None
        elif reason is not None and len(self._done) == self._count:
            made["timings"] = self._timings()
        return frame(made)

    def _object(self, choices: list[Any]) -> dict[str, Any]:
        return self._head | {"object": "chat.completion.chunk", "choices": choices}

    def _delta(self, index: int, call: Call) -> dict[str, Any]:
        number = self._calls[index]
        self._calls[index] += 1
        return {"tool_calls": [{"index": number} | tool_call(call)]}

    def _extras(self, chunk: Chunk) -> dict[str, Any]:
        """What belongs to the tokens of a chunk rather than to its text."""
        more: dict[str, Any] = {}
        if self._asked.logprobs and chunk.logprobs:
            texts = self._holder.token_texts(ids_of(chunk.logprobs))
            more["logprobs"] = chat_logprobs(chunk.logprobs, texts)
        if self._asked.return_tokens and chunk.token_ids:
            more["tokens"] = tokens_of(chunk)
        return more

    # -- whole ------------------------------------------------------------------------

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        tokens: list[list[Any]] = [[] for _ in range(self._count)]
        for item in generation.chunks():
            if item is None:
                continue
            index, chunk = item
            if self._asked.return_tokens:
                tokens[index] += tokens_of(chunk)
            if chunk.completion is not None:
                self._done[index] = chunk.completion
        return self._head | {
            "object": "chat.completion",
            "choices": [self._choice(index, tokens[index]) for index in range(self._count)],
            "usage": self._usage(),
            "timings": self._timings(),
        }

    def _choice(self, index: int, tokens: list[Any]) -> dict[str, Any]:
        done = self._done[index]
        parts = list(self._turn.parts(self._splitters[index], done.text, ended=True))
        calls = [part for part in parts if isinstance(part, Call)]
        content = "".join(part for part in parts if isinstance(part, str))
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = [tool_call(call) for call in calls]
            message["content"] = content if content.strip() else None
        choice = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(done, len(calls)),
            "seed": done.seed,
        }
        if self._asked.logprobs:
            found = done.logprobs or ()
            choice["logprobs"] = chat_logprobs(found, self._holder.token_texts(ids_of(found)))
        if self._asked.return_tokens:
            choice["tokens"] = tokens
        return choice

    def _all(self) -> list[Completion]:
        return [self._done[at] for at in range(self._count)]

    def _usage(self) -> dict[str, Any]:
        return usage(self._all(), [0])

    def _timings(self) -> dict[str, Any]:
        return timings(self._all())


def tool_call(call: Call) -> dict[str, Any]:
    """A call in OpenAI's form: its arguments are a text of JSON."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def finish_reason(done: Completion, calls: int) -> str:
    """Why the answer ended, in OpenAI's words."""
    return "tool_calls" if calls and done.finish_reason == "stop" else str(done.finish_reason)
