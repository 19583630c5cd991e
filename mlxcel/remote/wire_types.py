"""Records as plain values and back: what goes into messages, and what is accepted from them.

Requests travel by field name, so that an unknown field is noticed; answers as arrays in the
order of the fields, which both sides know. Both follow the dataclasses: a new field needs no
code here, but a new `PROTOCOL`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mlxcel.errors import MlxcelError, RequestError
from mlxcel.front import Asked, plain_prompt
from mlxcel.remote.wire import WireError
from mlxcel.types import Chunk, SamplingParams

__all__ = [
    "decode_asked",
    "decode_chunk",
    "decode_error",
    "decode_record",
    "encode_asked",
    "encode_chunk",
    "encode_error",
    "encode_record",
]

R = TypeVar("R")
Encode = Callable[[Any], Any]
Decode = Callable[[Any, str], Any]
_SCALARS = (int, float, str, bool)


# -- requests ---------------------------------------------------------------------------


def encode_asked(asked: Asked) -> dict[str, Any]:
    """A request as plain values: ``prompt``, ``params``, ``options``, ``stream``.

    Raises
    ------
    RequestError
        The prompt is of a wrong kind.
    """
    params = {}
    for spec in fields(SamplingParams):
        value = getattr(asked.params, spec.name)
        plain = spec.default if spec.default is not MISSING else {}
        if value != plain:
            params[spec.name] = dict(value) if isinstance(value, Mapping) else value
    return {
        "prompt": plain_prompt(asked.prompt),
        "params": params,
        "options": dict(asked.options),
        "stream": asked.stream,
    }


def decode_asked(value: Any) -> Asked:
    """The request in a message; the values of its fields check themselves.

    Raises
    ------
    RequestError
        A field is unknown, missing or bad.
    """
    names = ("prompt", "params", "options", "stream")
    if not isinstance(value, dict) or set(value) != set(names):
        got = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise RequestError(f"a request has exactly {', '.join(names)}; got {got[:200]}")
    for name in ("params", "options"):
        if not isinstance(value[name], dict) or not all(isinstance(k, str) for k in value[name]):
            raise RequestError(f"{name} must map names to values", param=name)
    if not isinstance(value["stream"], bool):
        raise RequestError(f"stream must be true or false, got {value['stream']!r}", param="stream")
    known = {spec.name for spec in fields(SamplingParams)}
    if unknown := sorted(value["params"].keys() - known):
        raise RequestError(
            f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(known))}",
            param=unknown[0],
        )
    return Asked(
        prompt=value["prompt"],
        params=SamplingParams(**value["params"]),
        options=value["options"],
        stream=value["stream"],
    )


# -- errors -----------------------------------------------------------------------------


def encode_error(error: MlxcelError) -> list[Any]:
    """An error as ``[code, message, param]``."""
    return [error.code, error.message, error.param]


def decode_error(value: Any) -> MlxcelError:
    """The error in a message, of the class that its code names.

    Raises
    ------
    WireError
        It is none.
    """
    match value:
        case [str(code), str(message), (str() | None) as param]:
            return MlxcelError.of(code, message, param)
    raise WireError(f"an error is [code, message, param], got {value!r:.100}")


# -- answers ----------------------------------------------------------------------------


def encode_record(record: Any) -> list[Any]:
    """A dataclass as the array of its fields, nested ones too."""
    cls: Any = type(record)
    encode = _encoder(cls)
    assert encode is not None
    made: list[Any] = encode(record)
    return made


def decode_record(cls: type[R], value: Any) -> R:
    """The dataclass that an array holds.

    Raises
    ------
    WireError
        A value has a wrong type; names where.
    """
    hint: Any = cls
    made: R = _decoder(hint)(value, cls.__name__)
    return made


def encode_chunk(chunk: Chunk) -> list[Any]:
    """A chunk as an array; see `encode_record`."""
    return encode_record(chunk)


def decode_chunk(value: Any) -> Chunk:
    """The chunk in an array; see `decode_record`."""
    return decode_record(Chunk, value)


@cache
def _encoder(hint: Any) -> Encode | None:
    """What turns values of a type into plain ones; ``None``: they are plain."""
    if is_dataclass(hint):
        return _record_encoder(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        some = next((e for e in map(_encoder, inner) if e is not None), None)
        return None if some is None else lambda value: None if value is None else some(value)
    if origin is tuple:
        encoders = [_encoder(each) for each in inner if each is not Ellipsis]
        if all(each is None for each in encoders):
            return None
        [encode] = encoders
        assert encode is not None
        return lambda value: [encode(each) for each in value]
    return None


def _record_encoder(cls: Any) -> Encode:
    names = [spec.name for spec in fields(cls)]
    hints = get_type_hints(cls)
    get = attrgetter(*names)
    nested = [(at, _encoder(hints[name])) for at, name in enumerate(names)]
    work = [(at, encode) for at, encode in nested if encode is not None]

    def record(value: Any) -> list[Any]:
        values = list(get(value))
        for at, encode in work:
            if values[at] is not None:
                values[at] = encode(values[at])
        return values

    return record


@cache
def _decoder(hint: Any) -> Decode:
    """What checks a plain value and makes one of a type of it."""
    if is_dataclass(hint):
        return _record_decoder(hint)
    if hint in _SCALARS:
        return _scalar_decoder(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _choice_decoder(inner)
    if origin in (Union, types.UnionType):
        [some] = [_decoder(each) for each in inner if each is not type(None)]
        return lambda value, where: None if value is None else some(value, where)
    if origin is tuple:
        return _tuple_decoder(inner)
    raise TypeError(f"{hint} has no form in a message")


def _record_decoder(cls: Any) -> Decode:
    names = [spec.name for spec in fields(cls)]
    hints = get_type_hints(cls)
    decoders = [(name, _decoder(hints[name])) for name in names]

    def record(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(names):
            raise _wrong(where, f"an array of {len(names)} fields", value)
        return cls(**{
            name: decode(each, f"{where}.{name}")
            for (name, decode), each in zip(decoders, value, strict=True)
        })  # fmt: skip

    return record


def _scalar_decoder(kind: type) -> Decode:
    accepted = (int, float) if kind is float else (kind,)

    def scalar(value: Any, where: str) -> Any:
        if type(value) not in accepted:
            raise _wrong(where, kind.__name__, value)
        return value

    return scalar


def _choice_decoder(words: Sequence[Any]) -> Decode:
    def choice(value: Any, where: str) -> Any:
        if value not in words:
            raise _wrong(where, f"one of {', '.join(words)}", value)
        return value

    return choice


def _tuple_decoder(inner: Sequence[Any]) -> Decode:
    if inner[-1] is Ellipsis:
        decode = _decoder(inner[0])

        def many(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise _wrong(where, "an array", value)
            return tuple([decode(each, where) for each in value])

        return many
    decoders = [_decoder(each) for each in inner]

    def few(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(decoders):
            raise _wrong(where, f"an array of {len(decoders)}", value)
        return tuple([one(each, where) for one, each in zip(decoders, value, strict=True)])

    return few


def _wrong(where: str, wanted: str, value: Any) -> WireError:
    return WireError(f"{where} must be {wanted}, got {value!r:.100}")
