"""Every kind of cache that rows of a batch have, in one table, with what a drafter keeps beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxcel.config import Settings
from mlxcel.engine.assistant_drafter import AssistantDrafter
from mlxcel.engine.drafters import HostDrafter, ModelDrafter, MtpDrafter
from mlxcel.models.target import Target
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.draft import DraftModel
from mlxcel.runtime.mtp import MtpChain
from tests.support import eagle, qwen, tiny
from tests.support.assistants import tiny_assistant
from tests.support.fresh import Fresh, FreshHead, assert_close

WINDOW = 10


class Nothing:
    """No drafter: drafts are made up."""

    drafter: Any = HostDrafter()

    def __init__(self, target: Target, settings: Settings) -> None:
        pass

    def read(self, text: Fresh) -> Any:
        """What a fresh run leaves of a text."""

    def check(self, kept: Any, row: int, length: int, drafted: bool, close: float) -> None:
        """What is kept of a row's first ``length`` tokens, after a round that drafted or not."""


class Head(Nothing):
    """A head with a cache of its own, which classic steps leave behind until the next draft."""

    def __init__(self, head: Any, settings: Settings) -> None:
        sizes = {"slack": settings.max_width, "length_step": settings.length_step}
        self.chain = MtpChain(head, **sizes)
        self.drafter = MtpDrafter(self.chain)

    def read(self, text: Fresh) -> FreshHead:
        return FreshHead(self.chain.head, text)

    def check(self, kept: FreshHead, row: int, length: int, drafted: bool, close: float) -> None:
        if drafted:
            kept.keys.check(self.chain.caches.layers[0], row, length, close)
            found, wanted = np.array(self.chain.state)[row, 0], kept.states[length - 1]
            scale = float(np.abs(kept.states).max())
            assert_close(found, wanted, scale, close, f"state of the head at {length} tokens")


class Assistant(Nothing):
    """An assistant: the hidden state of the newest token."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.chain = AssistantChain(tiny_assistant(target, window=WINDOW))
        self.drafter = AssistantDrafter(self.chain)

    def read(self, text: Fresh) -> Fresh:
        return text

    def check(self, kept: Fresh, row: int, length: int, drafted: bool, close: float) -> None:
        found, wanted = np.array(self.chain.state)[row, 0], kept.hidden[length - 1]
        scale = float(np.abs(kept.hidden).max())
        assert_close(found, wanted, scale, close, f"hidden state of {length} tokens")


class Itself(Nothing):
    """The target as its own draft model, which has not seen the last token of a full accept."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.chain = DraftModel(
            target, slack=settings.max_width, length_step=settings.length_step
        )
        self.drafter = ModelDrafter(self.chain)

    def read(self, text: Fresh) -> Fresh:
        return text

    def check(self, kept: Fresh, row: int, length: int, drafted: bool, close: float) -> None:
        if drafted:
            kept.check(self.chain.caches, row, length - 1, close)


def eagle_beside(kind: str, **config: Any) -> Callable[[Target, Settings], Head]:
    """An EAGLE head of a kind."""
    return lambda target, settings: Head(eagle.tiny_head(kind, target, **config), settings)


def mtp_beside(target: Target, settings: Settings) -> Head:
    """The head that a Qwen is published with."""
    return Head(qwen.tiny_head(target), settings)


@dataclass(frozen=True)
class CacheKind:
    """A model, and what drafts for it.

    Attributes
    ----------
    model : callable
        Makes it.
    beside : callable
        Makes what a drafter keeps, from target and settings.
    close : float
        How near contents must come to those of single steps, in parts of the largest value.
    """

    model: Callable[[], Any]
    beside: Callable[[Target, Settings], Nothing] = Nothing
    close: float = 2e-5


KINDS = {
    "full": CacheKind(tiny.llama_model),
    "sliding": CacheKind(lambda: tiny.gemma3_model(window=WINDOW)),
    "shared": CacheKind(lambda: tiny.gemma4_model(window=WINDOW, shared=3)),
    "assistant": CacheKind(lambda: tiny.gemma4_model(window=WINDOW), Assistant),
    "draft model": CacheKind(lambda: tiny.gemma3_model(window=WINDOW), Itself),
    "eagle": CacheKind(tiny.llama_model, eagle_beside("eagle")),
    "eagle3": CacheKind(
        lambda: tiny.llama_model(layers=3), eagle_beside("eagle3", **{eagle.IDS_KEY: [1, 2, 3]})
    ),
    "qwen3.5": CacheKind(tiny.HYBRIDS["qwen3.5"], mtp_beside),
    "qwen3.5-moe": CacheKind(tiny.HYBRIDS["qwen3.5-moe"]),
    "qwen3-next": CacheKind(tiny.HYBRIDS["qwen3-next"], mtp_beside),
    "qwen3-next-dense": CacheKind(tiny.HYBRIDS["qwen3-next-dense"]),
}
"""By what is special about them: full keys, a window that wraps, layers that share keys (fewer
caches than layers), recurrent states that are replayed, and what drafters keep beside these."""
