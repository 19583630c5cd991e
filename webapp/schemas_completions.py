"""``POST /v1/completions``, ``/tokenize`` and ``/detokenize``: the bodies."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from webapp.schemas import Ignored, Sampling, StreamOptions, Strict
from webapp.schemas_chat import Message, Tool

__all__ = ["CompletionRequest", "DetokenizeRequest", "TokenizeRequest"]

Id = Annotated[int, Field(ge=0, lt=2**32)]
Ids = Annotated[list[Id], Field(min_length=1)]


def _prompt_kind(value: Any) -> str:
    if not isinstance(value, list):
        return "as_text"
    if value and isinstance(value[0], list):
        return "as_id_lists"
    return "as_ids" if value and isinstance(value[0], int) else "as_texts"


Prompt = Annotated[
    Annotated[str, Tag("as_text")]
    | Annotated[Annotated[list[str], Field(min_length=1)], Tag("as_texts")]
    | Annotated[Ids, Tag("as_ids")]
    | Annotated[list[Ids], Tag("as_id_lists")],
    Discriminator(_prompt_kind),
]


class CompletionRequest(Sampling, Ignored):
    """Continue a text, token ids, or several of them."""

    model: str | None = None
    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0, description="16, as at OpenAI, if left out.")
    n: int | None = Field(None, ge=1)
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    ignore_eos: bool | None = Field(None, description="Go on past the model's own end.")

    @model_validator(mode="after")
    def _supported(self) -> CompletionRequest:
        if self.best_of not in (None, self.n or 1):
            raise ValueError(f"best_of {self.best_of} is not supported: it must be equal to n")
        if self.echo:
            raise ValueError("echo is not supported: the prompt is not repeated")
        if self.suffix:
            raise ValueError("suffix is not supported: nothing is inserted between texts")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """All prompts, each a text or ids."""
        value: Any = self.prompt
        if isinstance(value, str) or isinstance(value[0], int):
            return [value]
        return list(value)


class TokenizeRequest(Strict):
    """A text, or messages that go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[Id]
