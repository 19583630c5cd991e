"""Every number of accepted drafts around the edge of a window, for every kind of cache.

Each pass of each row is compared with mlx-lm's own caches that were fed the same tokens one at a
time: accepted drafts, tokens, hidden states, and what target and drafter hold afterwards.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.models import gated_delta
from mlxcel.runtime import state_cache
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.kv_cache import SlidingLayer
from mlxcel.types import Request, SamplingParams
from tests.support import tiny
from tests.support.cache_kinds import KINDS, WINDOW, CacheKind
from tests.support.fresh import Fresh
from tests.support.running import run
from tests.support.scripted_rows import CLASSIC, Pass, Script, ScriptedRows

WIDTH = 4
RING = WINDOW + WIDTH
# The least slack there can be, so that a rejected tail overwrites as much as it ever does.
SETTINGS = Settings(
    max_width=WIDTH, default_width=WIDTH, length_step=16, prefill_chunk=4, max_rows=4,
    prefix_bytes=0,
)  # fmt: skip
PROMPTS = [(3, 9), (20, 7), (11, 5), (2, 31)]
STARTS = range(WINDOW - WIDTH, RING + 1)
"""Of blocks that end before the window's edge, lie across it and across the ring's, or begin past
both."""
END = STARTS[-1] + 1 + 2 * WIDTH  # blocks of the whole width begin everywhere in STARTS
LENGTHS = [9, 7, 6, 3]  # each row crosses the window at another round
LONG = 2 * RING + 6  # past the second wrap
COUNT = LONG + WIDTH


class World:
    """A kind of cache with its model, its drafter and the texts of a fresh run."""

    def __init__(self, kind: CacheKind) -> None:
        self.kind = kind
        self.model = tiny.loaded(kind.model())
        self.beside = kind.beside(self.model.target, SETTINGS)
        self.texts = [Fresh(self.model.target, prompt, COUNT) for prompt in PROMPTS]
        self.kept = [self.beside.read(text) for text in self.texts]

    def walk(self, lengths: list[int], end: int, script: Script) -> list[list[Pass]]:
        """Run a request for each of the first texts, from these lengths on; return the rounds."""
        rows = ScriptedRows(self.beside, self.texts, self.kept, script, self.kind.close)
        engine = Engine(self.model, rows, SETTINGS)
        requests = [
            Request(
                prompt_ids=tuple(text.tokens[:length]), width=WIDTH, speculation="on",
                params=SamplingParams(max_tokens=end - length),
            )
            for text, length in zip(self.texts, lengths, strict=False)
        ]  # fmt: skip
        found = run(engine, *requests)
        assert engine.drafter is rows, engine.no_drafter
        for text, length, answer in zip(self.texts, lengths, found, strict=False):
            assert list(answer.token_ids) == text.tokens[length:end]
            assert answer.speculation.accepted > 0
        return rows.rounds


@functools.cache
def world_of(name: str) -> World:
    return World(KINDS[name])


def in_turn(*rights: int) -> Script:
    return lambda text, own, rounds: rights[own % len(rights)]


@pytest.mark.parametrize("name", KINDS)
def test_one_row(name: str) -> None:
    """Every count from every place; blocks after blocks and after classic steps."""
    world, seen = world_of(name), set()
    for first in (3, 1):
        second = WIDTH - 1 - first
        script = in_turn(first, second, CLASSIC)
        begin = STARTS[0] - (first + 1)  # the second block begins in STARTS[0], too
        for length in range(begin, begin + first + second + 3):
            rounds = world.walk([length], END, script)
            seen |= {(each.start, each.right) for (each,) in rounds if each.width == WIDTH}
    assert seen >= set(itertools.product(STARTS, range(WIDTH)))


def place(each: Pass) -> str:
    if each.start + each.width <= WINDOW:
        return "before"
    return "across" if each.start < RING else "after"


@pytest.mark.parametrize("name", KINDS)
def test_four_ragged_rows(name: str) -> None:
    """Rows that join one by one, and differ in text, length, accepted drafts and width."""
    world, seen, ragged = world_of(name), set(), 0
    for shift in (0, 1):

        def script(text: int, own: int, rounds: int, shift: int = shift) -> int:
            if own % 4 == 3 or rounds % 6 == 5:  # one row's classic step, or that of all
                return CLASSIC
            return (shift + text + own) % WIDTH

        rounds = world.walk(LENGTHS, LONG, script)
        seen |= {(place(p), p.right) for passes in rounds for p in passes if p.width == WIDTH}
        seen |= {(place(p), CLASSIC) for passes in rounds for p in passes if p.width == 1}
        full = [passes for passes in rounds if len(passes) == len(PROMPTS)]
        ragged += sum(len({p.right for p in passes}) > 2 for passes in full)
        assert any({p.width for p in passes} == {1} for passes in full)
        assert any({p.width for p in passes} == {1, WIDTH} for passes in full)
        crossed = {
            next(at for at, passes in enumerate(rounds) for p in passes
                 if p.text == text and p.start + p.right + 1 > WINDOW)
            for text in range(len(PROMPTS))
        }  # fmt: skip
        assert len(crossed) == len(PROMPTS), crossed
    places = ("before", "across", "after")
    assert seen >= set(itertools.product(places, [*range(WIDTH), CLASSIC]))
    assert ragged > 5


# -- the comparison is one that can fail -------------------------------------------------


def _small_ring(world: World, patch: pytest.MonkeyPatch) -> None:
    plain = SlidingLayer.__init__

    def small(self: SlidingLayer, cache: Any, window: int) -> None:
        plain(self, cache, window)
        self.ring = window + 1

    patch.setattr(SlidingLayer, "__init__", small)


def _short_replay(world: World, patch: pytest.MonkeyPatch) -> None:
    def short(layer: Any, state: Any, block: Any, count: Any, *rest: Any) -> Any:
        return gated_delta.replayed(layer, state, block, count - 1, *rest)

    patch.setattr(state_cache, "replayed", short)


def _own_entries(world: World, patch: pytest.MonkeyPatch) -> None:
    """Entries of accepted drafts stay as the chain made them, of its own states."""
    patch.setattr(world.beside.chain, "refresh", False)


def _old_state(world: World, patch: pytest.MonkeyPatch) -> None:
    plain = AssistantChain.absorb

    def last(chain: AssistantChain, check: Any) -> Any:
        plain(chain, check)
        chain.state = check.hidden[:, -1:]
        return chain.state

    patch.setattr(AssistantChain, "absorb", last)


def _nothing_to_catch_up(world: World, patch: pytest.MonkeyPatch) -> None:
    """Classic steps leave a hole in the draft model's cache."""
    patch.setattr(world.beside.chain, "skip", lambda *args, **options: None)


BROKEN: dict[str, tuple[Callable[[World, pytest.MonkeyPatch], None], str]] = {
    "sliding": (_small_ring, ""),
    "shared": (_small_ring, ""),
    "qwen3-next-dense": (_short_replay, ""),
    # The last three change no answer: only what the drafter keeps.
    "eagle": (_own_entries, "keys of"),
    "assistant": (_old_state, "hidden state of"),
    "draft model": (_nothing_to_catch_up, "keys of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, (broken, what) = world_of(name), BROKEN[name]
    broken(world, monkeypatch)
    with pytest.raises(AssertionError, match=what or None):
        world.walk([5], END, in_turn(2, CLASSIC, CLASSIC))
    world.beside.drafter.keep([])
