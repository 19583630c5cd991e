"""Frames and records: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from mlxcel import __version__
from mlxcel.errors import CapacityError, EngineError, LoadError, MlxcelError, RequestError
from mlxcel.front import Asked
from mlxcel.remote.wire import PROTOCOL, Frames, WireError, hello, mismatch, pack
from mlxcel.remote.wire_types import (
    decode_asked,
    decode_chunk,
    decode_error,
    encode_asked,
    encode_chunk,
    encode_error,
)
from mlxcel.types import (
    Chunk,
    Completion,
    Decision,
    SamplingParams,
    SpecStats,
    TokenLogprob,
    Usage,
)

LIMIT = 1 << 20
TEXTS = ["", "plain", "ü€😀\x00", "�", "line\nline", "x" * 3000]


def through(value: Any, rng: random.Random) -> Any:
    """A value sent as bytes that arrive in pieces of odd sizes."""
    data = pack(["test", value], LIMIT)
    frames, found = Frames(LIMIT), []
    while data:
        cut = rng.randint(1, len(data))
        found += frames.feed(data[:cut])
        data = data[cut:]
    [message] = found
    return message[1]


def some_logprobs(rng: random.Random, count: int) -> tuple[TokenLogprob, ...] | None:
    if rng.random() < 0.4:
        return None
    return tuple(
        TokenLogprob(
            rng.randrange(2**32),
            rng.choice([-0.0, -1.5, float("-inf"), -rng.random()]),
            tuple((rng.randrange(2**17), -rng.random() * 9) for _ in range(rng.randrange(4))),
        )
        for _ in range(count)
    )


def some_completion(rng: random.Random) -> Completion:
    count = rng.randrange(6)
    stats = SpecStats(
        kind=rng.choice(["mtp", "none"]), ran=rng.random() < 0.5, reason=rng.choice(TEXTS),
        rounds=rng.randrange(99), accepted_by_position=(3, 2, 1),
        widths=((1, 4), (8, rng.randrange(9))), decode_seconds=rng.random(),
    )  # fmt: skip
    return Completion(
        text=rng.choice(TEXTS),
        token_ids=tuple(rng.randrange(2**32) for _ in range(count)),
        drafted=tuple(rng.random() < 0.5 for _ in range(count)),
        finish_reason=rng.choice(["stop", "length", "cancelled", "error"]),
        usage=Usage(rng.randrange(9), count),
        seed=rng.choice([0, 1, 2**64 - 1]),
        decision=Decision(run=True, width=4, kind="mtp", source="gate", reason="it pays"),
        speculation=stats,
        logprobs=some_logprobs(rng, count),
        error=rng.choice([None, "no memory"]),
    )


def some_chunk(rng: random.Random) -> Chunk:
    count = rng.randrange(5)
    return Chunk(
        request_id=rng.randrange(2**40),
        text=rng.choice(TEXTS),
        token_ids=tuple(rng.randrange(2**32) for _ in range(count)),
        drafted=tuple(rng.random() < 0.5 for _ in range(count)),
        logprobs=some_logprobs(rng, count),
        completion=some_completion(rng) if rng.random() < 0.3 else None,
    )


def some_asked(rng: random.Random) -> Asked:
    params = SamplingParams(
        max_tokens=rng.randrange(99),
        temperature=rng.choice([0.0, 0.7]),
        top_k=rng.randrange(5),
        logit_bias={rng.randrange(99): rng.random() for _ in range(rng.randrange(3))},
        seed=rng.choice([None, 0, 2**64 - 1]),
        stop=rng.choice([(), ("a", "ü")]),
        stop_token_ids=rng.choice([(), (3, 2**32 - 1)]),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, 0, 20]),
    )
    prompt = rng.choice(
        ["text ü", [1, 2, 3], [{"role": "user", "content": "x", "more": {"deep": [1, None]}}], []]
    )
    options = rng.choice([{}, {"speculation": "off", "width": 3}])
    return Asked(prompt=prompt, params=params, options=options, stream=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(60))
def test_records_come_back_equal(seed: int) -> None:
    rng = random.Random(seed)
    chunk, asked = some_chunk(rng), some_asked(rng)
    assert decode_chunk(through(encode_chunk(chunk), rng)) == chunk
    assert decode_asked(through(encode_asked(asked), rng)) == asked


def test_scalars_of_numpy_are_sent_as_plain_ones() -> None:
    import numpy as np

    rng = random.Random(0)
    chunk = replace(some_chunk(rng), token_ids=(np.int64(5),), drafted=(np.bool_(True),))
    assert decode_chunk(through(encode_chunk(chunk), rng)).token_ids == (5,)


@pytest.mark.parametrize(
    "error",
    [RequestError("bad ü", param="seed"), CapacityError("full"), LoadError("x"), MlxcelError("y")],
)
def test_errors_keep_class_message_and_param(error: MlxcelError) -> None:
    back = decode_error(through(encode_error(error), random.Random(1)))
    assert (type(back), back.message, back.param) == (type(error), error.message, error.param)


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    assert type(decode_error(["of_2030", "what", None])) is MlxcelError


@pytest.mark.parametrize("seed", range(40))
def test_damaged_chunks_are_refused_with_the_place(seed: int) -> None:
    """One wrong value anywhere, and the place is named."""
    rng = random.Random(seed)
    plain = through(encode_chunk(replace(some_chunk(rng), completion=some_completion(rng))), rng)
    holder, path = plain, "Chunk"
    while True:
        at = rng.randrange(len(holder))
        if isinstance(holder[at], list) and holder[at] and rng.random() < 0.8:
            holder = holder[at]
            continue
        holder[at] = {"not": "this"}
        break
    with pytest.raises(WireError, match=rf"^{path}.* must be .*, got"):
        decode_chunk(plain)


@pytest.mark.parametrize("plain", [None, 5, {}, [], [1, 2], "text"])
def test_what_is_no_chunk(plain: Any) -> None:
    with pytest.raises(WireError, match="Chunk must be an array of 7 fields"):
        decode_chunk(plain)


@pytest.mark.parametrize("plain", [None, ["a"], ["a", "b", 5], [1, "b", None], "abc"])
def test_what_is_no_error(plain: Any) -> None:
    with pytest.raises(WireError, match="an error is"):
        decode_error(plain)


GOOD: dict[str, Any] = {"prompt": [1], "params": {}, "options": {}, "stream": True}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompts": 1}, "a request has exactly"),
        ({"params": []}, "params must map"),
        ({"params": {3: 1}}, "params must map"),
        ({"options": 7}, "options must map"),
        ({"stream": 1}, "stream must be"),
        ({"params": {"temprature": 1.0}}, "unknown parameter 'temprature'"),
        ({"params": {"temperature": "hot"}}, "temperature must be a finite number"),
        ({"params": {"logit_bias": {"a": 1.0}}}, "logit_bias key must be an integer"),
        ({"params": {"logit_bias": [1]}}, "logit_bias must map"),
        ({"params": {"stop": [b"\xff"]}}, "stop holds non-empty texts"),
        ({"params": {"seed": -1}}, "seed must be between"),
    ],
)
def test_bad_requests(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        decode_asked(through(GOOD | changed, random.Random(2)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speculation": "maybe"}, "speculation must be"),
        ({"width": "wide"}, "width must be an integer"),
        ({"prompt_ids": [2]}, "unknown parameter 'prompt_ids'"),
        ({"color": 1}, "unknown parameter 'color'"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        decode_asked(GOOD | {"options": options}).request((1,))


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xff\xff\xff", "4294967295 bytes"),
        (b"\x00\x00\x00\x00", "0 bytes"),
        ((LIMIT + 1).to_bytes(4, "big"), "are allowed"),
        (framed(b"\xc1"), "not msgpack"),
        (framed(b"\x93\xa1a"), "not msgpack"),
        (framed(msgpack.packb(["a"]) + b"\x00"), "not msgpack"),
        (framed(b"\x91\xa2\xff\xfe"), "not msgpack"),
        (framed(b"\xdd\xff\xff\xff\xff\xa1a"), "not msgpack"),
        (framed(b"\x91" * 100_000), "not msgpack"),
        (framed(b"\x91\x81\x90\x01"), "not msgpack"),
        (framed(msgpack.packb({"kind": "hello"})), "begins with its kind"),
        (framed(msgpack.packb([])), "begins with its kind"),
        (framed(msgpack.packb([5, "hello"])), "begins with its kind"),
    ],
)
def test_hostile_frames(data: bytes, said: str) -> None:
    frames = Frames(LIMIT)
    assert frames.feed(framed(msgpack.packb(["good"]))) == [["good"]]
    with pytest.raises(WireError, match=said):
        frames.feed(data)


def test_a_frame_cut_short_waits() -> None:
    data = pack(["hello", 1], LIMIT)
    frames = Frames(LIMIT)
    assert frames.feed(data[:-1]) == []
    assert frames.feed(data[-1:] + data) == [["hello", 1]] * 2


@pytest.mark.parametrize(
    ("value", "said"),
    [(2**70, "cannot be sent"), (object(), "type object"), ("\ud800", "cannot be sent"),
     ("x" * LIMIT, "above the limit")],
)  # fmt: skip
def test_what_cannot_be_packed(value: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        pack(["test", value], LIMIT)


def test_nesting_without_end_cannot_be_packed() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(RequestError, match="cannot be sent"):
        pack(["test", deep], LIMIT)


def test_hellos_of_two_versions() -> None:
    assert mismatch(hello(more=1), "client", "engine") is None
    said = mismatch(["hello", {"protocol": 9, "version": "7.0"}], "client", "engine") or ""
    assert "the engine speaks protocol 9 (mlxcel 7.0)" in said
    assert f"the client protocol {PROTOCOL} (mlxcel {__version__})" in said
    for other in (["submit", 1, {}], ["hello"], ["hello", 3]):
        assert "must be a hello" in (mismatch(other, "engine", "client") or "")
    assert "protocol None" in (mismatch(["hello", {}], "engine", "client") or "")
    assert issubclass(EngineError, MlxcelError)
