"""An application over a tiny model in this process, and one over a front without a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

import mlxcel
from mlxcel import LLM
from mlxcel.config import Settings
from tests.support.checkpoints import write_tiny_llama
from tests.web.support import FakeFront
from webapp import WebConfig, create_app


@pytest.fixture(scope="session")
def tiny_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("web") / "tiny")
    settings = Settings(
        cache_dir=tmp_path_factory.mktemp("cache"), enable_mtp_b1=True, mtp_exactness="off",
        mtp_block_controller="requested", max_rows=4,
    )  # fmt: skip
    with mlxcel.load(folder, "lookup", config=settings) as made:
        yield made


@pytest.fixture
def tiny(tiny_llm: LLM) -> FlaskClient:
    """A client of the application over the tiny model."""
    return create_app(WebConfig(), engine=tiny_llm).test_client()


@pytest.fixture
def front() -> FakeFront:
    return FakeFront()


@pytest.fixture
def fake(front: FakeFront) -> FlaskClient:
    """A client of the application over the front without a model."""
    return create_app(WebConfig(), engine=front).test_client()
