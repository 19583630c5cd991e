"""Invariant numerics: every pass of decode has one shape, and the output is what it always was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.decide.rows import RowRule
from mlxcel.engine.drafters import MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.exactness import probe_exactness
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.errors import RequestError
from mlxcel.models.target import CacheLayout, Target
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.kv_layers import FullLayer, KeyValueLayer, SlidingLayer
from mlxcel.types import Completion, Request, SamplingParams
from tests.engine.test_batching import some_requests
from tests.engine.test_governor import World
from tests.engine.test_mtp import chain_of, random_head
from tests.engine.test_twin import MODELS, PENALTIES
from tests.support import drafters, tiny
from tests.support.running import one, run

PROMPT = (3, 9, 20, 7, 11, 3, 9, 20)
FAST = Settings(length_step=64, prefill_chunk=16)
INVARIANT = replace(FAST, default_width=8, numerics="invariant")
BLOCK = 8


class Passes:
    """Shapes of the target's decode passes: rows, tokens, kind of frame, columns seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    @property
    def shapes(self) -> set[tuple[Any, ...]]:
        return set(self.seen)


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[Passes]:
    passes, inside = Passes(), [False]
    verify, fetch = Batch.verify, KeyValueLayer._fetch

    def watched_verify(self: Batch, *args: Any, **more: Any) -> Any:
        inside[0] = True
        try:
            return verify(self, *args, **more)
        finally:
            inside[0] = False

    def watched_fetch(self: Any, frame: Any) -> Any:
        keys, values = fetch(self, frame)
        if inside[0] and self is self._cache.layers[0]:
            passes.seen.append((keys.shape[0], frame.width, frame.is_exact, keys.shape[2]))
        return keys, values

    with patch.context() as inner:
        inner.setattr(Batch, "verify", watched_verify)
        inner.setattr(KeyValueLayer, "_fetch", watched_fetch)
        yield passes


# -- one shape -----------------------------------------------------------------------


HEAT = [(0.0, False), (0.0, True), (0.7, True), (1.3, False)]  # temperature, with penalties


def test_all_passes_of_a_request_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.loaded(tiny.llama_model())
    columns = 16 * -(-(len(PROMPT) + 70 + 2 * BLOCK) // 16)
    with watched(monkeypatch) as passes:
        one(Engine(model, None, INVARIANT), PROMPT, max_tokens=70)
        assert passes.shapes == {(1, BLOCK, False, columns)}
        for name in ("lookup", "self", "mixed", "liar"):
            for width in (2, 3, 5, BLOCK):
                engine = Engine(model, drafters.make(name, model, INVARIANT), INVARIANT)
                one(engine, PROMPT, width, max_tokens=70)
        assert passes.shapes == {(1, BLOCK, False, columns)}


def test_the_watch_sees_other_shapes_in_fast_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.loaded(tiny.llama_model())
    with watched(monkeypatch) as passes:
        engine = Engine(model, drafters.make("mixed", model, FAST), FAST)
        for width in (1, 4):
            one(engine, PROMPT, width, max_tokens=120)
    assert {shape[1] for shape in passes.seen} >= {1, 4}
    assert {shape[2] for shape in passes.seen} == {True, False}
    assert len({shape[3] for shape in passes.seen}) > 3


def test_rounds_that_the_policy_times_without_drafter_have_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch) as passes:
        world = World(tmp_path, numerics="invariant")
        found = world.ask()
    assert (found.speculation.width_min, found.speculation.width_max) == (1, 4)
    assert {(rows, tokens, exact) for rows, tokens, exact, _ in passes.seen} == {(1, 4, False)}


def test_in_a_batch_tokens_per_row_are_constant_and_rows_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, drafters.make("mixed", model, INVARIANT), INVARIANT)
    requests = [
        Request(prompt_ids=PROMPT, params=SamplingParams(max_tokens=count), width=width)
        for count, width in ((60, 3), (20, 5), (40, 1))
    ]
    with watched(monkeypatch) as passes:
        run(engine, *requests)
    assert {shape[1:3] for shape in passes.seen} == {(BLOCK, False)}
    assert {shape[0] for shape in passes.seen} == {1, 2, 3}


def test_models_that_cannot_rewind_decode_one_token_at_a_time() -> None:
    model = tiny.loaded(tiny.llama_model())
    wanted = one(Engine(model, None, FAST), PROMPT, max_tokens=30).token_ids
    model.target.layout = CacheLayout(None, "the model keeps a SlowCache")
    engine = Engine(model, drafters.make("lookup", model, INVARIANT), INVARIANT)
    assert one(engine, PROMPT, max_tokens=30).token_ids == wanted


# -- the same output -----------------------------------------------------------------


@pytest.fixture(scope="module")
def classic() -> Callable[..., tuple[Any, Completion]]:
    """A loaded model and its classic output in fast numerics, by name and parameters."""
    models: dict[str, Any] = {}
    outputs: dict[Any, Completion] = {}

    def get(name: str, tokens: int, **params: Any) -> tuple[Any, Completion]:
        if name not in models:
            models[name] = tiny.loaded(MODELS[name]())
        key = (name, tokens, tuple(params.items()))
        if key not in outputs:
            engine = Engine(models[name], None, FAST)
            outputs[key] = one(engine, PROMPT, max_tokens=tokens, **params)
        return models[name], outputs[key]

    return get


def params_of(temperature: float, penalised: bool) -> dict[str, Any]:
    plain = {"temperature": temperature, "seed": 11, "logprobs": 2}
    return plain | (PENALTIES if penalised else {})


def together(engine: Engine, tokens: int, params: dict[str, Any]) -> list[Completion]:
    """Widths 2 to 8 and a classic row in one batch."""
    sampling = SamplingParams(max_tokens=tokens, **params)
    modes: list[tuple[int | None, Any]] = [(width, "on") for width in range(2, BLOCK + 1)]
    requests = [
        Request(prompt_ids=PROMPT, params=sampling, width=width, speculation=mode)
        for width, mode in [*modes, (None, "off")]
    ]
    return run(engine, *requests)


@pytest.mark.parametrize(("temperature", "penalised"), HEAT)
@pytest.mark.parametrize("drafter", ["lookup", "self", "liar", "mixed"])
def test_twins(classic: Any, drafter: str, temperature: float, penalised: bool) -> None:
    params = params_of(temperature, penalised)
    model, wanted = classic("llama", 50, **params)

    def engine() -> Engine:
        return Engine(model, drafters.make(drafter, model, INVARIANT), INVARIANT)

    alone = one(Engine(model, None, INVARIANT), PROMPT, max_tokens=50, **params)
    assert alone.token_ids == wanted.token_ids
    for width in range(2, BLOCK + 1) if temperature == 0.7 else (2, 5, 8):
        twin = one(engine(), PROMPT, width, max_tokens=50, **params)
        assert twin.token_ids == wanted.token_ids
        assert twin.logprobs == alone.logprobs  # to the last bit
        if drafter == "self":
            assert twin.speculation.acceptance == 1.0
            assert twin.speculation.rounds == -(-49 // width)
        if drafter == "liar":
            assert (twin.speculation.accepted, twin.speculation.rounds) == (0, 49)
    for twin in together(engine(), 50, params):
        assert twin.token_ids == wanted.token_ids


@pytest.mark.parametrize(("temperature", "penalised"), HEAT)
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "gemma4-shared"])
def test_a_sliding_window_past_many_wraps(
    classic: Any, name: str, temperature: float, penalised: bool
) -> None:
    params = params_of(temperature, penalised)
    model, wanted = classic(name, 150, **params)
    alone = one(Engine(model, None, INVARIANT), PROMPT, max_tokens=150, **params)
    assert alone.token_ids == wanted.token_ids
    answers = {PROMPT: wanted.token_ids}

    def engine() -> Engine:
        drafter = ScriptedDrafter(answers, [3, 0, 7, 1, 5, 0, 0, 2, 6, 4], tiny.VOCAB)
        return Engine(model, drafter, INVARIANT)

    for width in (2, 5, 8):
        twin = one(engine(), PROMPT, width, max_tokens=150, **params)
        assert twin.token_ids == wanted.token_ids
        assert twin.logprobs == alone.logprobs
    for twin in together(engine(), 150, params):
        assert twin.token_ids == wanted.token_ids


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("numerics", ["invariant", "padded"])
def test_up_to_the_last_token_of_the_context(name: str, numerics: str) -> None:
    """Padding then reaches past the context, where nothing of it may come back."""
    model = tiny.loaded(MODELS[name](), context=64)
    settings = INVARIANT if numerics == "invariant" else FAST
    rule = None if numerics == "invariant" else (lambda: PADDED)
    tokens = 64 - len(PROMPT)
    wanted = one(Engine(model, None, FAST), PROMPT, max_tokens=tokens)
    assert len(wanted.token_ids) == tokens
    for drafter in ("self", "mixed", "liar"):
        for width in (2, 7, 8):
            made = drafters.make(drafter, model, settings)
            engine = Engine(model, made, settings, rule=rule)
            assert one(engine, PROMPT, width, max_tokens=tokens).token_ids == wanted.token_ids
    with pytest.raises(RequestError, match="context is 64"):
        engine.add(Request(prompt_ids=PROMPT, params=SamplingParams(max_tokens=tokens + 1)))


@pytest.mark.parametrize("rule", [None, lambda: PADDED], ids=["invariant", "padded"])
def test_a_head_that_reads_hidden_states_sees_no_padding(classic: Any, rule: Any) -> None:
    """It drafts what it drafts without: the same rounds, the same tokens."""
    params = params_of(0.7, penalised=True)
    model, wanted = classic("llama", 50, **params)
    settings = FAST if rule else INVARIANT
    head = random_head(model)
    for width in (3, 7):
        plain, twin = (
            one(Engine(model, MtpDrafter(chain_of(head)), s, rule=r), PROMPT, width,
                max_tokens=50, **params)
            for s, r in ((FAST, None), (settings, rule))
        )  # fmt: skip
        assert twin.token_ids == wanted.token_ids
        assert twin.speculation.accepted_by_position == plain.speculation.accepted_by_position
        assert twin.speculation.rounds == plain.speculation.rounds < 49


def test_rows_that_join_and_leave() -> None:
    model = tiny.loaded(MODELS["gemma3"](), eos=(2,))
    requests = some_requests(12, seed=3)
    settings = replace(INVARIANT, max_rows=4)
    solo = [run(Engine(model, None, FAST), request)[0] for request in requests]
    engine = Engine(model, drafters.make("mixed", model, settings), settings)
    for alone, twin in zip(solo, run(engine, *requests), strict=True):
        assert twin.token_ids == alone.token_ids
        assert twin.text == alone.text


def test_padding_is_not_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.loaded(tiny.llama_model())
    counts: list[float] = []
    plain = Batch.verify

    def verify(self: Batch, *args: Any, **more: Any) -> Any:
        before = 0 if self.sampler.counts is None else float(mx.sum(self.sampler.counts))
        check = plain(self, *args, **more)
        counts.append(float(mx.sum(self.sampler.counts)) - before)
        assert counts[-1] == float(mx.sum(check.accepted + 1))
        assert check.packed.shape == (2, 1, check.hidden.shape[1])
        assert check.states.shape[1] == BLOCK
        return check

    monkeypatch.setattr(Batch, "verify", verify)
    engine = Engine(model, drafters.make("mixed", model, INVARIANT), INVARIANT)
    one(engine, PROMPT, 4, max_tokens=40, frequency_penalty=0.5)
    assert max(counts) == 3.0


def test_widths_above_the_block_are_refused() -> None:
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, drafters.make("lookup", model, INVARIANT), INVARIANT)
    with pytest.raises(RequestError, match=r"width 9 .* default_width 8.*MLXCEL_DRAFT_WIDTH"):
        engine.add(Request(prompt_ids=PROMPT, width=9))
    with pytest.raises(RequestError, match="width 17 is above max_width 16"):
        engine.add(Request(prompt_ids=PROMPT, width=17))
    assert not engine.busy


# -- kernels that depend on the shape ------------------------------------------------

PENALTY = 1e-5


def rows_matter(patch: pytest.MonkeyPatch, size: float = PENALTY) -> None:
    """A projection whose result depends on how many rows it has, as on a GPU."""
    plain = nn.Linear.__call__

    def call(self: Any, x: mx.array) -> mx.array:
        rows = x.size // x.shape[-1]
        return plain(self, x) * (1 + size * min(rows, 40))

    patch.setattr(nn.Linear, "__call__", call)


def columns_matter(patch: pytest.MonkeyPatch) -> None:
    """Attention whose result depends on how many positions it is given, seen or not."""
    plain = FullLayer.update_and_fetch

    def fetch(self: Any, keys: mx.array, values: mx.array) -> Any:
        keys, values = plain(self, keys, values)
        return keys, values * (1 + PENALTY * (keys.shape[2] % 11))

    patch.setattr(FullLayer, "update_and_fetch", fetch)


def masks_matter(patch: pytest.MonkeyPatch) -> None:
    """Attention that rounds differently with an array for a mask."""
    plain = FullLayer.update_and_fetch

    def fetch(self: Any, keys: mx.array, values: mx.array) -> Any:
        keys, values = plain(self, keys, values)
        return keys, values * (1 + PENALTY * self._cache.frame.is_exact)

    patch.setattr(FullLayer, "update_and_fetch", fetch)


@pytest.mark.parametrize("kernel", [rows_matter, columns_matter, masks_matter])
@pytest.mark.parametrize("width", [2, 3, 8])
def test_the_probe_finds_bitwise_where_fast_numerics_do_not(
    kernel: Any, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny.loaded(tiny.llama_model()).target
    kernel(monkeypatch)
    fast = probe_exactness(target, width, FAST)
    assert fast.level in ("token", "divergent")
    assert fast.largest_difference > 0
    found = probe_exactness(target, width, INVARIANT)
    assert (found.level, found.largest_difference) == ("bitwise", 0.0), found.reason


@pytest.mark.parametrize("name", MODELS)
def test_the_probe_finds_bitwise_on_every_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_matter(monkeypatch)
    target = tiny.loaded(MODELS[name]()).target
    found = probe_exactness(target, 4, replace(INVARIANT, max_width=8, prefill_chunk=32))
    assert found.level == "bitwise", found.reason


def test_tokens_differ_in_fast_numerics_and_not_in_invariant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows_matter(monkeypatch, 3e-2)
    model = tiny.loaded(tiny.llama_model())

    def ids(settings: Settings, drafter: str | None, width: int | None) -> tuple[int, ...]:
        made = drafters.make(drafter, model, settings) if drafter else None
        engine = Engine(model, made, settings)
        return one(engine, PROMPT, width, max_tokens=120, temperature=1.0, seed=3).token_ids

    assert ids(FAST, None, None) != ids(FAST, "mixed", 4)
    wanted = ids(INVARIANT, None, None)
    for drafter in ("mixed", "self", "lookup"):
        for width in (2, 4, 7, 8):
            assert ids(INVARIANT, drafter, width) == wanted


def test_a_shape_that_is_not_kept_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe would see a step that is not padded."""
    rows_matter(monkeypatch)
    plain = RowRule.tokens
    monkeypatch.setattr(RowRule, "tokens", lambda s, r, w: w if w == 1 else plain(s, r, w))
    found = probe_exactness(tiny.loaded(tiny.llama_model()).target, 4, INVARIANT)
    assert found.level != "bitwise"


# -- padding where more rows are cheaper ---------------------------------------------

PADDED = RowRule(padding=dict.fromkeys(range(2, 8), 8) | {9: 12, 10: 12, 11: 12})


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("llama", 0.0), ("llama", 0.7), ("llama", 1.3), ("gemma3", 0.7), ("gemma4", 0.0)],
)
def test_padded_verifies_give_the_same_output(
    classic: Any, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params_of(temperature, penalised=True)
    model, wanted = classic(name, 60, **params)
    for drafter in ("lookup", "mixed"):
        for width in (2, 5, 11):
            plain, padded = (
                one(
                    Engine(model, drafters.make(drafter, model, FAST), FAST, rule=rule),
                    PROMPT, width, max_tokens=60, **params,
                )
                for rule in (None, lambda: PADDED)
            )  # fmt: skip
            assert padded.token_ids == plain.token_ids == wanted.token_ids
            stats = [
                replace(done.speculation, queue_seconds=0, decode_seconds=0, prefill_seconds=0)
                for done in (plain, padded)
            ]
            assert stats[0] == stats[1]
    engine = Engine(model, drafters.make("mixed", model, FAST), FAST, rule=lambda: PADDED)
    with watched(monkeypatch) as passes:
        for twin in together(engine, 60, params):
            assert twin.token_ids == wanted.token_ids
    assert {shape[0] for shape in passes.seen} >= {1, 8}


def test_only_the_verify_of_a_single_row_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.loaded(tiny.llama_model())
    asked: list[int] = []

    def rule() -> RowRule:
        asked.append(1)
        return PADDED

    def engine() -> Engine:
        return Engine(model, drafters.make("self", model, FAST), FAST, rule=rule)

    with watched(monkeypatch) as passes:
        request = Request(prompt_ids=PROMPT, params=SamplingParams(max_tokens=25))
        run(engine(), replace(request, speculation="off"))
        assert (passes.shapes, asked) == ({(1, 1, True, at) for at in range(9, 33)}, [])
        passes.seen.clear()
        run(engine(), replace(request, width=5))
        assert {shape[1] for shape in passes.seen} == {8}
        passes.seen.clear()
        run(engine(), replace(request, width=5), replace(request, width=3))
    assert {shape[1] for shape in passes.seen if shape[0] == 2} == {3, 5}
    assert asked


def test_a_padded_pass_writes_what_an_unpadded_one_writes() -> None:
    """Up to the new length; what lies past it is overwritten by the next block."""
    model = tiny.loaded(tiny.llama_model())

    def layers(rule: RowRule) -> list[np.ndarray[Any, Any]]:
        kept: list[np.ndarray[Any, Any]] = []
        engine = Engine(model, drafters.make("mixed", model, FAST), FAST, rule=lambda: rule)
        engine.add(Request(prompt_ids=PROMPT, params=SamplingParams(max_tokens=40), width=5))
        for _ in range(6):
            engine.step()
        length = int(np.array(engine.batch.lengths)[0])
        for array in engine.batch.caches.state:
            kept.append(np.array(array)[:, :, :length])
        return kept

    for plain, padded in zip(layers(RowRule()), layers(PADDED), strict=True):
        assert plain.shape == padded.shape
        assert np.abs(plain - padded).max() < 1e-4


@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_an_impossible_padding_is_an_error(tokens: int) -> None:
    batch = Batch(tiny.loaded(tiny.llama_model()).target, slack=16, length_step=64)
    with pytest.raises(ValueError, match=f"padded to {tokens}"):
        batch._padded(mx.zeros((1, 4 if tokens < 4 else 8), mx.uint32), tokens)


def test_a_ring_has_room_for_the_padding() -> None:
    target: Target = tiny.loaded(MODELS["gemma3"]()).target
    caches = Batch(target, slack=INVARIANT.max_width, length_step=64).caches
    rings = [layer.ring for layer in caches.layers if isinstance(layer, SlidingLayer)]
    assert rings
    assert all(ring >= tiny.WINDOW + BLOCK for ring in rings)
