"""Requests made from ``/openapi.json`` itself: none may fail, and what comes must be described.

``make test-slow`` sends 5,000 of them; by default a few of each operation go.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mlxcel import LLM
from tests.web.support import HELLO, post
from webapp import WebConfig, create_app

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
FEW, MANY = 15, 500
"""Cases of an operation, of which there are more than ten."""


def sane(examples: int) -> settings:
    """No deadline: a case decodes; and what is generated may be large."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@pytest.fixture(scope="module")
def described(tiny_llm: LLM) -> schemathesis.BaseSchema:
    app = create_app(WebConfig(default_tokens=4, max_tokens=64), engine=tiny_llm)
    return schemathesis.openapi.from_wsgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@sane(FEW)
def test_described_requests(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


@pytest.mark.slow
@schema.parametrize()
@sane(MANY)
def test_thousands_of_described_requests(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def test_the_next_request_succeeds(tiny_llm: LLM) -> None:
    client = create_app(WebConfig(), engine=tiny_llm).test_client()
    body = {"messages": HELLO, "max_tokens": 2}
    assert post(client, "/v1/chat/completions", body)["choices"]
