"""Requests made from ``/openapi.json`` itself: none may fail, and what comes must be described.

``make test-slow`` sends 5,000 of them; by default a few of each operation go.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mlxcel import LLM
from tests.web.support import HELLO, FakeFront, post
from webapp import WebConfig, create_app

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
FEW, MANY = 15, 500
"""Cases of an operation, of which there are more than ten."""


OPERATIONS = [
    (path, method)
    for path, methods in create_app(WebConfig(), engine=FakeFront())
    .test_client().get("/openapi.json").get_json()["paths"].items()
    for method in methods
]  # fmt: skip


@pytest.fixture(scope="module")
def described(tiny_llm: LLM) -> schemathesis.BaseSchema:
    app = create_app(WebConfig(default_tokens=4, max_tokens=64), engine=tiny_llm)
    return schemathesis.openapi.from_wsgi("/openapi.json", app)


def send(described: schemathesis.BaseSchema, path: str, method: str, examples: int) -> None:
    """Send so many generated requests; no deadline, since a case decodes."""

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=described[path][method].as_strategy())
    def one(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    one()


def test_all_operations_are_described() -> None:
    assert len(OPERATIONS) >= 10


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_described_requests(described: schemathesis.BaseSchema, path: str, method: str) -> None:
    send(described, path, method, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_thousands_of_described_requests(
    described: schemathesis.BaseSchema, path: str, method: str
) -> None:
    send(described, path, method, MANY)


def test_the_next_request_succeeds(tiny_llm: LLM) -> None:
    client = create_app(WebConfig(), engine=tiny_llm).test_client()
    body = {"messages": HELLO, "max_tokens": 2}
    assert post(client, "/v1/chat/completions", body)["choices"]
