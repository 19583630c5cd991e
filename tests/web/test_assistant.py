"""A Gemma 4 with its assistant, all the way from folders to HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlxcel
from mlxcel.config import Settings
from mlxcel.models.target import Target
from tests.support import tiny
from tests.support.assistants import assistant_config, tiny_assistant, write_assistant
from tests.support.checkpoints import vocabulary, write_tiny_gemma4
from tests.web.support import post
from webapp import WebConfig, create_app

ASK: dict[str, Any] = {
    "prompt": "hello ab hello", "max_tokens": 20, "seed": 1, "temperature": 0.7, "ignore_eos": True,
}  # fmt: skip


def test_answers_are_equal_with_and_without(tmp_path: Path) -> None:
    vocab = len(vocabulary())
    target = Target(tiny.gemma4_model(vocab=vocab), {})
    text = {"vocab_size": vocab}
    assistant = tiny_assistant(target, ordered=True, text=text)
    folder = write_assistant(
        tmp_path / "assistant", assistant, assistant_config(ordered=True, text=text)
    )
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True, mtp_exactness="off")
    where = write_tiny_gemma4(tmp_path / "target")
    with mlxcel.load(where, drafter=folder, config=settings) as llm:
        client = create_app(WebConfig(), engine=llm).test_client()
        on, off = (
            post(client, "/v1/completions", ASK | {"speculation": mode}) for mode in ("on", "off")
        )
        assert on["choices"][0]["text"] == off["choices"][0]["text"]
        assert on["timings"]["draft_kind"] == "assistant"
        assert on["timings"]["draft_n"] > 0
        assert off["timings"]["draft_n"] == 0
