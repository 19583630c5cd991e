"""``POST /v1/messages``, in Anthropic's form."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, jsonify

from mlxcel.types import Chunk, Completion
from webapp.described import describe
from webapp.engine import holder
from webapp.generation import Generation, check_model
from webapp.reports import timings, tokens_of
from webapp.schemas import parse
from webapp.schemas_messages import MessagesRequest, compact
from webapp.sse import event
from webapp.turns import Call, Turn

blueprint = Blueprint("messages", __name__)

PING = event("ping", {"type": "ping"})


@blueprint.post("/v1/messages")
@describe("Continue a conversation, in Anthropic's form.", request=MessagesRequest, streams=True)
def messages() -> Response:
    """Answer, at once or as a stream."""
    asked = parse(MessagesRequest)
    name = check_model(asked.model)
    with Generation() as generation:
        turn = Turn(asked.plain(), asked.offered(), must_call=asked.must_call)
        turn.budget(asked.max_tokens, "max_tokens")
        arguments = asked.params() | asked.options(holder().config.request_timeout)
        pieces = bool(asked.stream or asked.return_tokens)
        generation.add(turn.prompt_ids, arguments, pieces=pieces)
        answer = Answer(name, asked, turn)
        if not asked.stream:
            return jsonify(answer.whole(generation))
        frames = generation.frames(
            answer.write, answer.closing, opening=answer.opening(), silence=PING,
            failure=lambda body: event("error", {"type": "error"} | body),
        )  # fmt: skip
        return generation.respond(frames)


class Answer:
    """Writes what the model says in Anthropic's form.

    Parameters
    ----------
    model : str
        Its name.
    asked : MessagesRequest
        The request.
    turn : Turn
        Reads texts and calls.
    """

    def __init__(self, model: str, asked: MessagesRequest, turn: Turn) -> None:
        self._asked, self._turn = asked, turn
        self._head = {
            "id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model,
        }  # fmt: skip
        self._splitter = turn.splitter()
        self._block = -1  # number of the last content block
        self._open = False  # whether it is a text block that goes on
        self._calls = 0
        self._done: Completion | None = None
        self._holder = holder()

    def opening(self) -> str:
        """The first event."""
        counts = {"input_tokens": len(self._turn.prompt_ids), "output_tokens": 0}
        empty: dict[str, Any] = {
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts,
        }  # fmt: skip
        return event("message_start", {"type": "message_start", "message": self._head | empty})

    def write(self, index: int, chunk: Chunk) -> Iterator[str]:
        """Events of a chunk."""
        done = chunk.completion
        more = {"tokens": tokens_of(chunk)} if self._asked.return_tokens else {}
        texts = list(self._turn.parts(self._splitter, chunk.text, done is not None))
        if more.get("tokens") and not any(isinstance(part, str) for part in texts):
            texts.insert(0, "")
        for part in texts:
            if isinstance(part, Call):
                yield from self._tool(part)
            else:
                yield from self._text(part, more)
                more = {}
        if done is not None:
            self._done = done

    def closing(self) -> Iterator[str]:
        """The last events."""
        yield from self._close()
        done = self._done
        assert done is not None
        reason, stop = self._reason(done)
        yield event(
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": stop},
                "usage": used(done),
                "timings": timings([done]),
                "seed": done.seed,
            },
        )
        yield event("message_stop", {"type": "message_stop"})

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        tokens: list[Any] = []
        for item in generation.chunks():
            if item is not None:
                tokens += tokens_of(item[1]) if self._asked.return_tokens else []
                self._done = item[1].completion
        done = self._done
        assert done is not None
        content: list[dict[str, Any]] = []
        for part in self._turn.parts(self._splitter, done.text, ended=True):
            if isinstance(part, Call):
                self._calls += 1
                content.append(tool_use(part) | {"input": part.arguments})
            elif content and content[-1]["type"] == "text":
                content[-1]["text"] += part
            else:
                content.append({"type": "text", "text": part})
        reason, stop = self._reason(done)
        more = {"tokens": tokens} if self._asked.return_tokens else {}
        return self._head | more | {
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": used(done),
            "timings": timings([done]),
            "seed": done.seed,
        }

    def _text(self, text: str, more: dict[str, Any]) -> Iterator[str]:
        if not self._open:
            yield self._start({"type": "text", "text": ""})
            self._open = True
        yield self._delta({"type": "text_delta", "text": text} | more)

    def _tool(self, call: Call) -> Iterator[str]:
        yield from self._close()
        self._calls += 1
        yield self._start(tool_use(call))
        yield self._delta({"type": "input_json_delta", "partial_json": compact(call.arguments)})
        yield self._stop()

    def _close(self) -> Iterator[str]:
        if self._open:
            self._open = False
            yield self._stop()

    def _start(self, block: dict[str, Any]) -> str:
        self._block += 1
        name = "content_block_start"
        return event(name, {"type": name, "index": self._block, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> str:
        name = "content_block_delta"
        return event(name, {"type": name, "index": self._block, "delta": delta})

    def _stop(self) -> str:
        return event("content_block_stop", {"type": "content_block_stop", "index": self._block})

    def _reason(self, done: Completion) -> tuple[str, str | None]:
        """Why the answer ended, in Anthropic's words, and the stop text that ended it."""
        if done.finish_reason == "length":
            return "max_tokens", None
        if self._calls:
            return "tool_use", None
        stops = self._asked.stop_sequences or []
        if stops:
            written = self._holder.front.decode(done.token_ids)
            # The answer is what was written before the stop text, if one was met.
            rest = written[len(done.text) :]
            for stop in stops:
                if rest.startswith(stop):
                    return "stop_sequence", stop
        return "end_turn", None


def tool_use(call: Call) -> dict[str, Any]:
    """A block of a call, still without its input."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def used(done: Completion) -> dict[str, int]:
    """Token counts in Anthropic's form, in which cached tokens are no input tokens."""
    cached = done.usage.cached_tokens
    return {
        "input_tokens": done.usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": done.usage.completion_tokens,
    }
