"""A tiny target with a chat template, and options that suit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from mlxcel.distill.options import Options
from mlxcel.runtime.loader import LoadedModel
from tests.support import tiny

END, USER_MARK, ANSWER_MARK, BEGIN = 1, 2, 3, 0


class ChatTokenizer:
    """One id per character, four ids for marks, and a template made of them."""

    has_chat_template = True
    marks: ClassVar = {"<b>": BEGIN, "<e>": END, "<u>": USER_MARK, "<a>": ANSWER_MARK}

    def __init__(self, vocab: int = tiny.VOCAB) -> None:
        self.vocab = vocab
        self.eos_token_ids = {END}
        self.bos_token_id = BEGIN

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        text = "<b>"
        for message in messages:
            mark = "<u>" if message["role"] == "user" else "<a>"
            text += f"{mark}{message['content']}<e>"
        return text + "<a>"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids, place = [], 0
        while place < len(text):
            mark = text[place : place + 3]
            if mark in self.marks:
                ids.append(self.marks[mark])
                place += 3
            else:
                ids.append(4 + ord(text[place]) % (self.vocab - 4))
                place += 1
        return ids


def chat_model(model: Any = None, seed: int = 0) -> LoadedModel:
    """A tiny llama that ends its turns now and then."""
    model = tiny.llama_model(seed) if model is None else model
    loaded = tiny.loaded(model)
    return LoadedModel(loaded.target, ChatTokenizer(), loaded.checkpoint, loaded.representation)


def options(out: Path, **more: Any) -> Options:
    given: dict[str, Any] = {
        "target": "tiny", "out": out, "steps": 10, "tokens": 1500, "draft_vocab": 32,
        "length": 48, "rows": 16, "train_rows": 8, "eval_tokens": 32,
    }  # fmt: skip
    return Options(**(given | more))
