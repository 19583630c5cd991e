"""Bodies that were bent in some place: an answer of 200 or a refusal, never a 500."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

import pytest
from flask.testing import FlaskClient

from mlxcel import LLM
from tests.web.support import HELLO, post
from webapp import WebConfig, create_app

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [*HELLO, {"role": "assistant", "content": "a"}, *HELLO], "max_tokens": 2,
        "temperature": 0.5, "seed": 1, "stop": ["x"], "logprobs": True, "top_logprobs": 2, "n": 1,
        "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1.0},
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none",
    },
    "/v1/completions": {
        "prompt": ["ab", "hello"], "max_tokens": 2, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
        "logprobs": 1, "draft_width": 2, "priority": 1, "timeout": 5.0, "return_tokens": True,
    },
    "/v1/messages": {
        "model": "tiny", "messages": HELLO, "max_tokens": 2, "system": [
            {"type": "text", "text": "s"}], "stop_sequences": ["x"], "metadata": {"user_id": "a"},
    },
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5, 6, 7]},
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 2**31, 2**63, 2**64, 10**40, 1e300, "", "x",
    "é\u0000", "\U0001f600", "on", "off", "text", [], [[]], [None], {}, {"a": {}}, {"role": "user"},
    {"type": "text"}, [1, 2, 3], ["a", "b"], "x" * 5000, [[5], [6]], {"5": -100}, {"function": {}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a value."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    found = [path] if path else []
    for key, each in inner:
        found += places(each, (*path, key))
    return found


def bent(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three odd values, missing ones or strangers."""
    copy = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 3)):
        if not copy:
            break
        where = rng.choice(places(copy))
        node = copy
        for key in where[:-1]:
            node = node[key]
        odd = deepcopy(rng.choice(ODD))
        match rng.randrange(4):
            case 0:
                del node[where[-1]]
            case 1 if isinstance(node, dict):
                node[rng.choice(["x", "n", "stop", "type", "echo"])] = odd
            case _:
                node[where[-1]] = odd
    made: dict[str, Any] = copy
    return made


@pytest.fixture
def tiny(tiny_llm: LLM) -> FlaskClient:
    return create_app(WebConfig(default_tokens=4), engine=tiny_llm).test_client()


@pytest.mark.parametrize(
    ("seed", "count"), [(6, 300), pytest.param(8, 2000, marks=pytest.mark.slow)]
)
def test_bent_bodies(tiny: FlaskClient, seed: int, count: int) -> None:
    rng = random.Random(seed)
    seen = {200: 0, 400: 0}
    for _ in range(count):
        path = rng.choice(list(BODIES))
        body = bent(BODIES[path], rng)
        response = tiny.post(path, json=body)
        text = response.get_data(as_text=True)
        assert response.status_code in (200, 400, 404), (path, body, text)
        assert "internal" not in text.partition('"error"')[2], (path, body, text)
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
        if response.status_code != 200:
            assert set(response.get_json()["error"]) == {"message", "type", "code", "param"}
    assert min(seen[200], seen[400]) > 20


@pytest.mark.parametrize(
    ("seed", "count"), [(7, 300), pytest.param(9, 2000, marks=pytest.mark.slow)]
)
def test_bent_bytes(tiny: FlaskClient, seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(list(BODIES))
        raw = bytearray(json.dumps(BODIES[path]).encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        response = tiny.post(path, data=bytes(raw), content_type="application/json")
        assert response.status_code in (200, 400, 404), bytes(raw)
        response.close()
    assert post(tiny, "/v1/completions", {"prompt": "hello", "max_tokens": 1})
