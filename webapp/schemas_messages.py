"""``POST /v1/messages``: the body, in Anthropic's form."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from webapp.schemas import Extensions, Strict
from webapp.schemas_chat import NAME

__all__ = ["MessagesRequest"]


class CacheControl(Strict):
    """Ignored: kept prefixes are found without marks."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class TextBlock(Strict):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ToolUseBlock(Strict):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


def _text_kind(value: Any) -> str:
    return "as_blocks" if isinstance(value, list) else "as_text"


Text = Annotated[
    Annotated[str, Tag("as_text")] | Annotated[list[TextBlock], Tag("as_blocks")],
    Discriminator(_text_kind),
]


class ToolResultBlock(Strict):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
Content = Annotated[
    Annotated[str, Tag("as_text")] | Annotated[list[Block], Tag("as_blocks")],
    Discriminator(_text_kind),
]


class Turn(Strict):
    """A turn of the conversation."""

    role: Literal["user", "assistant"]
    content: Content

    def plain(self) -> list[dict[str, Any]]:
        """The messages that chat templates take for it: results of tools are their own."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        calls = [
            {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": b.input}}
            for b in self.content
            if isinstance(b, ToolUseBlock)
        ]
        made: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": joined(block.content)}
            for block in self.content
            if isinstance(block, ToolResultBlock)
        ]
        if texts or calls:
            turn: dict[str, Any] = {"role": self.role, "content": "".join(texts)}
            made.append(turn | ({"tool_calls": calls} if calls else {}))
        return made


def joined(content: Any) -> str:
    """One text of a text, blocks, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block.text for block in content)


class AnthropicTool(Strict):
    """A tool that the model may use."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None

    def plain(self) -> dict[str, Any]:
        """In the form that chat templates take."""
        about = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            about["description"] = self.description
        return {"type": "function", "function": about}


class AnthropicChoice(Strict):
    """Whether tools are used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Literal[False] | None = None


class Thinking(Strict):
    """Extended thinking, which there is not."""

    type: Literal["disabled"]


class MessagesRequest(Extensions):
    """Continue a conversation."""

    model: str
    messages: list[Turn] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: Text | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = Field(None, max_length=16)
    stream: bool | None = None
    tools: list[AnthropicTool] | None = Field(None, max_length=128)
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    seed: int | None = Field(None, ge=0, le=2**64 - 1, description="Of ours.")
    metadata: dict[str, Any] | None = None  # ignored: it names the user
    service_tier: str | None = None  # ignored: it concerns the account

    @model_validator(mode="after")
    def _consistent(self) -> MessagesRequest:
        if self.messages[-1].role == "assistant":
            raise ValueError(
                "messages ends with the assistant, but an answer that is begun is not continued "
                "here: end with the user"
            )
        choice = self.tool_choice
        if choice is None or choice.type == "none":
            return self
        if not self.tools:
            raise ValueError("tool_choice needs tools")
        if (choice.type == "tool") != (choice.name is not None):
            raise ValueError("tool_choice has a name if, and only if, its type is tool")
        if choice.name is not None and choice.name not in [tool.name for tool in self.tools]:
            raise ValueError(f"tool_choice names {choice.name}, which is not among the tools")
        return self

    def plain(self) -> list[dict[str, Any]]:
        """Messages for the chat template."""
        made = [message for turn in self.messages for message in turn.plain()]
        if system := joined(self.system):
            made.insert(0, {"role": "system", "content": system})
        return made

    def offered(self) -> list[dict[str, Any]]:
        """Tools for the template: none, all, or the one that must be used."""
        choice = self.tool_choice
        if not self.tools or (choice is not None and choice.type == "none"):
            return []
        wanted = None if choice is None else choice.name
        return [tool.plain() for tool in self.tools if wanted in (None, tool.name)]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice is not None and self.tool_choice.type in ("any", "tool")

    def params(self) -> dict[str, Any]:
        """Arguments of `Front.stream` about sampling."""
        given = {"top_p": self.top_p, "top_k": self.top_k, "seed": self.seed}
        found: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        found["temperature"] = 1.0 if self.temperature is None else self.temperature
        found["stop"] = tuple(self.stop_sequences or ())
        return found | {"max_tokens": self.max_tokens}


def compact(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
