"""``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, jsonify

from mlxcel.types import Chunk, Completion
from webapp.described import describe
from webapp.engine import holder
from webapp.generation import Generation, check_model
from webapp.limits import budget
from webapp.reports import ids_of, text_logprobs, timings, tokens_of, usage
from webapp.schemas import parse
from webapp.schemas_completions import CompletionRequest
from webapp.sse import DONE, frame
from webapp.turns import check_choices

blueprint = Blueprint("completions", __name__)

DEFAULT_TOKENS = 16  # OpenAI's


@blueprint.post("/v1/completions")
@describe("Continue texts or token ids.", request=CompletionRequest, streams=True)
def completions() -> Response:
    """Answer, at once or as a stream."""
    asked = parse(CompletionRequest)
    name = check_model(asked.model)
    each = asked.n or 1
    check_choices(each * len(asked.prompts), "n" if each > 1 else "prompt")
    config = holder().config
    with Generation() as generation:
        front = holder().front
        context = front.facts["context"]
        arguments = asked.params() | asked.options(config.request_timeout)
        if asked.logprobs is not None:
            arguments["logprobs"] = asked.logprobs
        arguments["ignore_eos"] = bool(asked.ignore_eos)
        pieces = bool(asked.stream or asked.return_tokens or asked.logprobs is not None)
        prompts = [
            tuple(prompt) if isinstance(prompt, list) else front.encode(prompt)
            for prompt in asked.prompts
        ]
        tokens = [
            budget(asked.max_tokens, DEFAULT_TOKENS, len(ids), context, config, "max_tokens")
            for ids in prompts
        ]  # all are checked before one is begun
        for ids, most in zip(prompts, tokens, strict=True):
            own = arguments | {"max_tokens": most, "seed": asked.seed}
            generation.add_choices(ids, each, own, pieces=pieces)
        answer = Answer(name, asked, each * len(prompts))
        if asked.stream:
            return generation.respond(generation.frames(answer.write, answer.closing))
        return jsonify(answer.whole(generation))


class Answer:
    """Writes what the model says in OpenAI's form.

    Parameters
    ----------
    model : str
        Its name.
    asked : CompletionRequest
        The request.
    count : int
        Number of choices: those of the first prompt, then of the second.
    """

    def __init__(self, model: str, asked: CompletionRequest, count: int) -> None:
        self._asked, self._count = asked, count
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion",
            "created": int(time.time()), "model": model, "system_fingerprint": None,
        }  # fmt: skip
        self._offsets = [0] * count
        self._done: dict[int, Completion] = {}
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._holder = holder()

    def write(self, index: int, chunk: Chunk) -> Iterator[str]:
        """Frames of a chunk."""
        done = chunk.completion
        more = self._extras(index, chunk)
        if done is not None:
            self._done[index] = done
            more["seed"] = done.seed
            yield self._frame(index, chunk.text, str(done.finish_reason), more)
        elif chunk.text or more:
            yield self._frame(index, chunk.text, None, more)

    def closing(self) -> Iterator[str]:
        """The end of a stream."""
        if self._with_usage:
            yield frame(self._head | {"choices": []} | self._sums())
        yield DONE

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        extras: list[list[dict[str, Any]]] = [[] for _ in range(self._count)]
        for item in generation.chunks():
            if item is not None:
                index, chunk = item
                extras[index].append(self._extras(index, chunk))
                if chunk.completion is not None:
                    self._done[index] = chunk.completion
        choices = []
        for index in range(self._count):
            done = self._done[index]
            more = joined(extras[index]) | {"seed": done.seed}
            choices.append(self._choice(index, done.text, str(done.finish_reason), more))
        return self._head | {"choices": choices} | self._sums()

    def _frame(self, index: int, text: str, reason: str | None, more: dict[str, Any]) -> str:
        made = self._head | {"choices": [self._choice(index, text, reason, more)]}
        if self._with_usage:
            made["usage"] = None
        elif reason is not None and len(self._done) == self._count:
            made["timings"] = self._sums()["timings"]
        return frame(made)

    def _choice(
        self, index: int, text: str, reason: str | None, more: dict[str, Any]
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        return choice | more

    def _extras(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """What belongs to the tokens of a chunk rather than to its text."""
        more: dict[str, Any] = {}
        if self._asked.logprobs is not None and chunk.logprobs:
            texts = self._holder.token_texts(ids_of(chunk.logprobs))
            more["logprobs"] = text_logprobs(
                chunk.logprobs, texts, chunk.pieces, self._offsets[index]
            )
        self._offsets[index] += len(chunk.text)
        if self._asked.return_tokens and chunk.token_ids:
            more["tokens"] = tokens_of(chunk)
        return more

    def _sums(self) -> dict[str, Any]:
        done = [self._done[at] for at in range(self._count)]
        firsts = range(0, self._count, self._asked.n or 1)
        return {"usage": usage(done, firsts), "timings": timings(done)}


def joined(extras: list[dict[str, Any]]) -> dict[str, Any]:
    """Extras of all chunks of an answer as those of one."""
    made: dict[str, Any] = {}
    for extra in extras:
        if "tokens" in extra:
            made.setdefault("tokens", []).extend(extra["tokens"])
        if "logprobs" in extra:
            into = made.setdefault("logprobs", {})
            for name, values in extra["logprobs"].items():
                into[name] = (into.get(name) or []) + values if values is not None else None
    return made
