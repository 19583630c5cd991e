"""Tiny checkpoints of every family of targets and drafters, as ``mlxcel.load`` takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxcel.models.drafters.mtp import MTPHead, head_config
from mlxcel.models.target import Target
from tests.support import eagle, qwen, tiny
from tests.support.assistants import assistant_config, tiny_assistant, write_assistant
from tests.support.checkpoints import (
    vocabulary,
    write_tiny,
    write_tiny_gemma4,
    write_tiny_llama,
)

VOCAB = len(vocabulary())
Written = tuple[Path, str | Path]


def _of_itself(model: Callable[..., Any], folder: Path) -> Written:
    """A target and itself as its draft model."""
    where = write_tiny(folder / "target", model(vocab=VOCAB))
    return where, where


def _distilled(folder: Path) -> Written:
    """A head as ``mlxcel distill`` writes it, for half of the ids."""
    where = write_tiny_llama(folder / "target")
    ids = mx.arange(0, VOCAB, 2, dtype=mx.uint32)
    head = MTPHead(Target(tiny.llama_model(vocab=VOCAB), {}), ids)
    head.save(folder / "head", head_config(head))
    return where, folder / "head"


def _eagle(kind: str, folder: Path) -> Written:
    where = write_tiny_llama(folder / "target", layers=eagle.LAYERS)
    target = Target(tiny.llama_model(vocab=VOCAB, layers=eagle.LAYERS), {})
    drafts = int(eagle.draft_ids(VOCAB).size) if kind == "eagle3" else None
    head = eagle.echoing_head(kind, target)
    config = eagle.config_of(VOCAB, drafts)
    return where, eagle.write_folder(folder / "head", config, eagle.tensors_of(head))


def _assistant(folder: Path, *, shared: int = 0, **kind: bool) -> Written:
    unified = kind.get("unified", False)
    where = write_tiny_gemma4(folder / "target", shared=shared, unified=unified)
    target = Target(tiny.gemma4_model(shared=shared, vocab=VOCAB), {})
    options: dict[str, Any] = kind | {"text": {"vocab_size": VOCAB}}
    made = tiny_assistant(target, **options)
    return where, write_assistant(folder / "assistant", made, assistant_config(**options))


def _inside(kind: str, form: str, folder: Path) -> Written:
    """A head in the checkpoint of its target."""
    return qwen.write_qwen(folder / "target", kind, form=form)[0], "mtp"


def _beside(folder: Path) -> Written:
    """A head in a folder of its own."""
    where, tensors = qwen.write_qwen(folder / "target", keep=False)
    config = json.loads((where / "config.json").read_text()) | {"model_type": "qwen3_5_mtp"}
    return where, qwen.write_folder(folder / "head", config, tensors)


@dataclass(frozen=True)
class Family:
    """How its folders are written, and what its drafter calls itself.

    Attributes
    ----------
    write : callable
        From an empty folder to what ``mlxcel.load`` is given: target and drafter.
    kind : str
        As in statistics.
    """

    write: Callable[[Path], Written]
    kind: str


FAMILIES = {
    "llama, lookup": Family(lambda f: (write_tiny_llama(f / "target"), "lookup"), "lookup"),
    "llama, distilled head": Family(_distilled, "mtp"),
    "llama, EAGLE-1": Family(partial(_eagle, "eagle"), "eagle"),
    "llama, EAGLE-3": Family(partial(_eagle, "eagle3"), "eagle3"),
    "qwen2, draft model": Family(partial(_of_itself, tiny.qwen2_model), "draft"),
    "qwen3, draft model": Family(partial(_of_itself, tiny.qwen3_model), "draft"),
    "gemma3, draft model": Family(partial(_of_itself, tiny.gemma3_model), "draft"),
    "gemma4, assistant": Family(_assistant, "assistant"),
    "gemma4 with shared keys, ordered assistant": Family(
        partial(_assistant, shared=3, ordered=True), "assistant"
    ),
    "gemma4 unified, unified assistant": Family(
        partial(_assistant, unified=True), "assistant"
    ),
    "qwen3.5, its own head": Family(partial(_inside, "qwen3_5", "published"), "mtp"),
    "qwen3.5, a head beside it": Family(_beside, "mtp"),
    "qwen3.5 with experts, its own head": Family(
        partial(_inside, "qwen3_5_moe", "converted"), "mtp"
    ),
    "qwen3-next, its own head": Family(partial(_inside, "qwen3_next", "published"), "mtp"),
}
"""Whatever can speculate."""


def write_mamba(folder: Path) -> Written:
    """A target that can neither batch nor go back, with a drafter all the same."""
    return write_tiny(folder / "target", tiny.mamba_model(vocab=VOCAB)), "lookup"
