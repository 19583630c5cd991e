"""A Qwen 3.5 with the head in its checkpoint, all the way from one folder to HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlxcel
from mlxcel.config import Settings
from tests.support.qwen import write_qwen
from tests.web.support import post
from webapp import WebConfig, create_app

ASK: dict[str, Any] = {
    "prompt": "hello ab hello", "max_tokens": 20, "seed": 1, "temperature": 0.7, "ignore_eos": True,
}  # fmt: skip


def test_answers_are_equal_with_and_without(tmp_path: Path) -> None:
    folder, _ = write_qwen(tmp_path / "target")
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True, mtp_exactness="off")
    with mlxcel.load(folder, drafter="mtp", config=settings) as llm:
        client = create_app(WebConfig(), engine=llm).test_client()
        on, off = (
            post(client, "/v1/completions", ASK | {"speculation": mode}) for mode in ("on", "off")
        )
        assert on["choices"][0]["text"] == off["choices"][0]["text"]
        assert on["timings"]["draft_kind"] == "mtp"
        assert on["timings"]["draft_n"] > 0
        assert off["timings"]["draft_n"] == 0
