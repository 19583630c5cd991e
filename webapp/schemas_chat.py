"""``POST /v1/chat/completions``: the body."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from webapp.schemas import Ignored, Sampling, StreamOptions, Strict

__all__ = ["ChatRequest", "Message", "Tool"]

NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class TextPart(Strict):
    """A piece of a message; other types than text are refused."""

    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str:
    return "as_parts" if isinstance(value, list) else "as_text"


Content = Annotated[
    Annotated[str, Tag("as_text")] | Annotated[list[TextPart], Tag("as_parts")],
    Discriminator(_content_kind),
]


class CalledFunction(Strict):
    """A function that the model has called."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Strict):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"only the assistant has tool_calls, not the role {self.role}")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"a message of the role {self.role} needs content, got null")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of the role tool needs tool_call_id")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it: one text, arguments as objects."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        made: dict[str, Any] = {"role": role, "content": content or ""}
        for name in ("name", "tool_call_id"):
            if getattr(self, name) is not None:
                made[name] = getattr(self, name)
        if self.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _object(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return made


def _object(text: str) -> Any:
    """Arguments as templates want them, or as they are if they are no JSON."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text


class Function(Strict):
    """What the model may call."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _not_strict(self) -> Function:
        if self.strict:
            raise ValueError(
                "strict functions are not supported: nothing forces the arguments into their "
                "schema here; leave strict out"
            )
        return self


class Tool(Strict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    """The function that must be called."""

    name: str = Field(pattern=NAME)


class ChosenTool(Strict):
    """The tool that must be used."""

    type: Literal["function"]
    function: ChosenFunction


def _choice_kind(value: Any) -> str:
    return "as_tool" if isinstance(value, dict) else "as_word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("as_word")]
    | Annotated[ChosenTool, Tag("as_tool")],
    Discriminator(_choice_kind),
]


class ResponseFormat(Strict):
    """The form of the answer; text is the only one."""

    type: str
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _text(self) -> ResponseFormat:
        if self.type != "text":
            raise ValueError(
                f"response_format {self.type[:40]!r} is not supported: nothing forces answers into "
                "a grammar here; ask for JSON in the prompt, or use type text"
            )
        return self


class ChatRequest(Sampling, Ignored):
    """Continue a conversation."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            raise ValueError(
                f"max_tokens {both[0]} and max_completion_tokens {both[1]} differ: give one"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true")
        if self.parallel_tool_calls is False and self.tools:
            raise ValueError("parallel_tool_calls false is not supported: leave it out")
        self._check_choice()
        return self

    def _check_choice(self) -> None:
        choice, tools = self.tool_choice, self.tools or []
        if choice in (None, "none"):
            return
        if not tools:
            raise ValueError("tool_choice needs tools")
        if isinstance(choice, ChosenTool):
            names = [tool.function.name for tool in tools]
            if choice.function.name not in names:
                raise ValueError(
                    f"tool_choice names {choice.function.name}, which is not among the tools"
                )

    @property
    def budget(self) -> int | None:
        """Tokens that the answer may have, by either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def offered(self) -> list[dict[str, Any]]:
        """Tools for the template: none, all, or the one that must be called."""
        if not self.tools or self.tool_choice == "none":
            return []
        chosen = self.tool_choice
        return [
            tool.model_dump(exclude_none=True)
            for tool in self.tools
            if not isinstance(chosen, ChosenTool) or tool.function.name == chosen.function.name
        ]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ChosenTool)
