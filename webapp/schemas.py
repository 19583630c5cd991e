"""What all requests share: strict models, parsing of bodies, and the fields of sampling."""

from __future__ import annotations

import json
import re
import reprlib
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from werkzeug.exceptions import HTTPException

from webapp.errors import ApiError
from webapp.limits import SlowClient

__all__ = ["Extensions", "Ignored", "OneOrMore", "Sampling", "StreamOptions", "Strict", "parse"]

M = TypeVar("M", bound=BaseModel)

SHOWN = reprlib.Repr()
"""Shows values in messages, however large they are."""
SHOWN.maxstring = SHOWN.maxlong = SHOWN.maxother = 60


class Strict(BaseModel):
    """No field that is not named, no value of another type; ``null`` is as good as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _kind(value: Any) -> str:
    return "as_list" if isinstance(value, list) else "as_one"


OneOrMore = Annotated[
    Annotated[str, Tag("as_one")] | Annotated[list[str], Tag("as_list")], Discriminator(_kind)
]
"""A text or a list of texts; errors speak of the one that was given."""


class Extensions(Strict):
    """Fields of ours, all optional."""

    speculation: Literal["auto", "on", "off"] | None = Field(
        None, description="Whether to speculate; the answer is the same."
    )
    draft_width: int | None = Field(
        None, ge=1, le=64, description="Block width: one bonus token and the drafts."
    )
    priority: int | None = Field(
        None, ge=-(2**31) + 1, le=2**31 - 1, description="Lower is served earlier."
    )
    timeout: float | None = Field(
        None, gt=0, le=604800, description="Seconds until the request ends with status 408."
    )
    return_tokens: bool | None = Field(
        None, description="Adds tokens: [{id, text, drafted}] to choices."
    )

    def options(self, longest: float) -> dict[str, Any]:
        """Arguments of `Front.stream` besides those of sampling."""
        return {
            "speculation": self.speculation or "auto",
            "width": self.draft_width,
            "priority": self.priority or 0,
            "timeout": min(self.timeout or longest, longest),
        }


class Ignored(Strict):
    """Fields that change no answer at OpenAI either, or that concern accounts and storage."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class StreamOptions(Strict):
    """How a stream is written."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against listeners: nothing to pad here


class Sampling(Extensions):
    """How tokens are chosen."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1, description="0 keeps all.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    stop: OneOrMore | None = None

    def params(self) -> dict[str, Any]:
        """Arguments of `Front.stream` about sampling, but for seed and budget."""
        names = ["top_p", "top_k", "min_p", "repetition_penalty"]
        names += ["presence_penalty", "frequency_penalty"]
        given = {name: getattr(self, name) for name in names}
        found = {name: value for name, value in given.items() if value is not None}
        found["temperature"] = 1.0 if self.temperature is None else self.temperature
        if self.logit_bias:
            found["logit_bias"] = {_token(key): value for key, value in self.logit_bias.items()}
        if self.stop is not None:
            found["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return found


def _token(key: str) -> int:
    if not key.isdecimal() or not key.isascii() or len(key) > 10:
        raise ApiError(
            400, f"logit_bias maps token ids to numbers, got the id {key[:40]!r}",
            param="logit_bias",
        )  # fmt: skip
    return int(key)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _read() -> bytes:
    """The bytes of the body; its server raises errors of its own where they are damaged."""
    try:
        return request.get_data()
    except HTTPException:
        raise
    except SlowClient as error:
        raise SlowClient.answer() from error
    except Exception as error:
        raise ApiError(400, f"the body cannot be read: {str(error)[:200]}") from error


def _whole_body() -> Any:
    """The JSON in the body.

    Raises
    ------
    ApiError
        415: it is something else; 400: it is damaged.
    """
    if request.mimetype != "application/json":
        raise ApiError(
            415,
            f"the body must be application/json, got {request.mimetype or 'no content type'!r}: "
            "set the header Content-Type",
        )
    raw = _read()
    limit = request.max_content_length
    # Without a Content-Length a body is cut off at the limit, silently.
    if limit is not None and request.content_length is None and len(raw) >= limit:
        raise ApiError(413, f"the body is larger than the limit of {limit} bytes: send less")
    if not raw:
        raise ApiError(400, "the body is empty: send a JSON object")
    try:
        text = raw.decode("utf-8")
        data = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:  # the one way to half a surrogate pair, which no tokenizer takes
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise ApiError(400, f"the body is no UTF-8: {str(error)[-100:]}") from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {str(error)[:200]}") from error
    if not isinstance(data, dict):
        raise ApiError(400, f"the body must be a JSON object, got {type(data).__name__}")
    return data


def parse(model: type[M]) -> M:
    """The request's body as a model.

    Raises
    ------
    ApiError
        400: a field is bad, unknown or missing, which the message names with its value; or 413,
        415 as the body is.
    """
    data = _whole_body()
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _first(error) from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply") from error


def _first(error: ValidationError) -> ApiError:
    """One error of several, in our words."""
    found = error.errors(include_url=False, include_context=False)[0]
    where = [str(part) for part in found["loc"] if not str(part).startswith("as_")]
    param = ".".join(where)[:200]
    said = found["msg"].removeprefix("Value error, ")
    said = re.sub(r"valid dictionary( or instance of \w+)?", "JSON object", said)
    match found["type"]:
        case "extra_forbidden":
            message = f"{param} is no field that is supported here: /openapi.json lists them"
        case "missing":
            message = f"{param} is missing"
        case "value_error":
            message = said
        case _:
            message = f"{param}: {said[0].lower()}{said[1:]}, got {SHOWN.repr(found['input'])}"
    return ApiError(400, message, param=param or None)
