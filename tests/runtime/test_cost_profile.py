"""Cost profile: models of a published size, passes on them, parts of a pass, and the sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache

from mlxcel.errors import ConfigError, LoadError
from mlxcel.hardware.cost_times import CostTimes, PassKey, Sample
from mlxcel.runtime import cost_profile
from mlxcel.runtime.cost_parts import parts_of
from mlxcel.runtime.cost_plan import CostPlan
from mlxcel.runtime.cost_profile import measure_costs
from mlxcel.runtime.cost_rows import NativeRow, SlotRow, row_of
from mlxcel.runtime.geometry_drafter import MtpDrafter, build_drafter
from mlxcel.runtime.geometry_model import (
    build_target,
    needed_bytes,
    require_memory,
)
from tests.support.geometries import GEOMETRIES, tiny

CONTEXT = 20
NAMES = tuple(GEOMETRIES)


def row(name: str, form: str = "dense", context: int = CONTEXT) -> SlotRow | NativeRow:
    target = build_target(tiny(name), form, mx.float32)
    made = row_of(target, context, widest=8, length_step=32)
    assert isinstance(made, SlotRow | NativeRow)
    return made


# -- rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["stored", "dense"])
def test_a_verify_chooses_what_single_steps_choose(name: str, form: str) -> None:
    """The same tokens, fed as a block, padded, and one by one, from the same length."""
    made = row(name, form)
    made.rewind(CONTEXT)
    mx.eval(made.pending())
    first = int(made.bonus.item())
    steps = []
    for _ in range(3):
        packed = made.classic()
        mx.eval(packed, made.pending())
        steps.append(int(packed[1, 0, 0].item()))

    def block(tokens: int) -> list[int]:
        made.rewind(CONTEXT)
        _feed(made, first)
        drafts = mx.array([steps[:2]], mx.uint32)
        packed = made.verify(3, tokens, drafts)
        mx.eval(packed, made.pending())
        return [int(token) for token in made.choices[0].tolist()]

    assert block(3) == steps
    assert block(8) == steps
    assert block(3) == steps  # the state before it was put back


def test_a_native_verify_leaves_the_state_as_it_was() -> None:
    made = row("tiny-qwen3_5")
    assert isinstance(made, NativeRow)
    before = [
        cache.offset if isinstance(cache, KVCache) else list(cache.cache) for cache in made.caches
    ]
    for tokens in (3, 8):
        mx.eval(made.verify(3, tokens, mx.ones((1, 2), mx.uint32)), made.pending())
        for cache, state in zip(made.caches, before, strict=True):
            if isinstance(cache, KVCache):
                assert cache.offset == state == CONTEXT
            else:
                assert all(new is old for new, old in zip(cache.cache, state, strict=True))
    mx.eval(made.classic(), made.pending())
    assert {c.offset for c in made.caches if isinstance(c, KVCache)} == {CONTEXT + 1}


def _feed(made: SlotRow | NativeRow, token: int) -> None:
    if isinstance(made, SlotRow):
        made.batch.bonus = mx.array([token], mx.uint32)
    else:
        made.bonus = mx.array([token], mx.uint32)


def test_right_drafts_are_not_accepted_either_and_rounds_advance_by_one() -> None:
    made = row("tiny-gemma4")
    assert isinstance(made, SlotRow)
    steps = []
    for _ in range(3):
        packed = made.classic()
        mx.eval(packed, made.pending())
        steps.append(int(packed[1, 0, 0].item()))
    right = mx.array([steps], mx.uint32)
    made.rewind(CONTEXT)
    _feed(made, 1)
    for at in range(1, 4):
        packed = made.verify(4, 8, right)
        mx.eval(packed, made.pending())
        if at == 1:
            assert made.choices[0, :3].tolist() == steps
        assert int(made.batch.lengths[0].item()) == CONTEXT + at
    made.rewind(CONTEXT)
    _feed(made, 1)
    assert int(made.batch.lengths[0].item()) == CONTEXT
    check = made.batch.verify(right, [4], bound=CONTEXT + 8)
    assert int(check.accepted[0].item()) == 3  # as they are when they may count


def test_windows_that_have_wrapped_are_served_too() -> None:
    """The window is 24 tokens long, the context 40."""
    made = row("tiny-gemma4", context=40)
    assert isinstance(made, SlotRow)
    packed = made.verify(4, 4, mx.ones((1, 3), mx.uint32))
    mx.eval(packed, made.pending())
    rings = {layer.capacity for layer in made.batch.caches.layers}
    assert rings == {24 + 8, 64}
    assert made.columns(4) == 48  # what is known of the length, to whole spans of 16


def test_a_cache_that_cannot_be_put_back_is_refused() -> None:
    target = build_target(tiny("tiny-gemma4"), "dense", mx.float32)
    with pytest.raises(LoadError, match="RotatingKVCache, whose state cannot be put back"):
        NativeRow(target, CONTEXT)


# -- drafters ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_made_round_by_round(name: str) -> None:
    made = row(name)
    drafter = build_drafter(tiny(name), made, mx.float32, CONTEXT)
    mx.eval(made.classic(), made.pending())
    made.rewind(CONTEXT)
    drafter.begin()
    for width in (4, 4, 2):
        drafts = drafter.draft(width)
        packed = made.verify(width, width, drafts)
        drafter.absorb()
        mx.eval(drafts, packed, made.pending())
        assert (drafts.shape, drafts.dtype) == ((1, width - 1), mx.uint32)
        assert bool(mx.all(drafts < 96).item())
        assert packed[0, 0, 1:].tolist() == drafts[0].tolist()
    assert drafter.nbytes > 0


def test_an_mtp_cache_keeps_one_pair_of_a_round() -> None:
    made = row("tiny-qwen3_5")
    drafter = build_drafter(tiny("tiny-qwen3_5"), made, mx.float32, CONTEXT)
    assert isinstance(drafter, MtpDrafter)
    drafter.begin()
    for at in range(1, 4):
        made.verify(4, 4, drafter.draft(4))
        # The first draft of a round but the first comes from the pass over the true pairs.
        assert drafter.pairs == CONTEXT + at - 1 + (3 if at == 1 else 2)
        drafter.absorb()
        assert drafter.pairs == CONTEXT + at
    drafter.begin()
    assert drafter.pairs == CONTEXT


# -- parts ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 4])
def test_parts_hold_the_whole_model(name: str, tokens: int) -> None:
    """Matrices of all parts are those of the model, but for an embedding that is no head."""
    made = row(name)
    parts = {part.name: part for part in parts_of(made, tokens, mx.float32)}
    recurrent = {"recurrence"} if "qwen" in name else set()
    assert set(parts) == {"projections", "attention", "mlp", "head", "norms"} | recurrent
    for part in parts.values():
        outs = part.build()
        mx.eval(outs)
        assert all(bool(mx.all(mx.isfinite(out)).item()) for out in outs if out.dtype == mx.float32)
    written = sum(out.size for out in parts["projections"].build())
    assert written == tokens * (64 + sum(map(_other_outputs, made.target.body.layers)))
    elements = sum(
        value.size for path, value in tree_flatten(made.target.model.parameters())
        if value.ndim > 1 and "conv1d" not in path
    )  # fmt: skip
    if "qwen" in name:
        elements -= 96 * 64
    products = sum(parts[part].flops for part in ("projections", "mlp", "head"))
    if "moe" not in name:  # of experts only those in use count
        assert products == 2 * tokens * elements
    else:
        assert 0 < products < 2 * tokens * elements
    assert all(part.nbytes > 0 for part in parts.values())


def _other_outputs(layer: Any) -> int:
    """Outputs of the projections of a layer that lie beside the chain."""
    mixer = layer.linear_attn if "linear_attn" in layer else layer.self_attn
    chained = ("q_proj", "o_proj", "in_proj_z", "out_proj")
    return sum(
        int(part.weight.shape[0]) for name, part in mixer.items()
        if "proj" in name and name not in chained
    )  # fmt: skip


def test_experts_are_read_as_far_as_tokens_spread() -> None:
    """Two of four experts by one token; more by more tokens, never more than all."""
    made = row("tiny-gemma4-moe")
    read = {}
    for tokens in (1, 2, 8):
        part = next(p for p in parts_of(made, tokens, mx.float32) if p.name == "mlp")
        read[tokens] = part.nbytes
    layer = made.target.body.layers[0]
    experts = sum(v.nbytes for _, v in tree_flatten(layer.experts.parameters())) * 4
    others = read[1] - experts // 2
    assert read[2] == others + experts * 3 // 4
    assert others + experts * 0.99 < read[8] <= others + experts


# -- sampling ------------------------------------------------------------------------


def plan(**other: Any) -> CostPlan:
    values = {
        "widths": (1, 2, 4), "pads": (1, 8), "context": CONTEXT, "length_step": 32, "rounds": 2,
        "repeats": 2, "budget": 60.0,
    }  # fmt: skip
    return CostPlan(**(values | other))


def test_what_does_not_fit_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(*args: Any, **options: Any) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(cost_profile, "build_target", build)
    for forms in (("dense",), ("stored", "dense")):
        with pytest.raises(LoadError, match=r"GiB needed, 0\.0 GiB available; build fewer layers"):
            measure_costs(tiny("tiny-gemma4"), plan(forms=forms), free=1000)
    with pytest.raises(LoadError, match=r"a model: 2\.0 GiB needed, 1\.0 GiB"):
        require_memory("a model", 2 << 30, 1 << 30)


@pytest.fixture(scope="module")
def measured() -> CostTimes:
    return measure_costs(tiny("tiny-gemma4"), plan())


def test_all_passes_are_measured(measured: CostTimes) -> None:
    expected = {
        PassKey(stage, form, width, tokens, waited)  # type: ignore[arg-type]
        for form in ("stored", "dense")
        for stage, width, tokens, waited in (
            ("classic", 1, 1, False), ("classic", 1, 1, True),
            ("verify", 1, 1, False), ("verify", 2, 2, False), ("verify", 2, 8, False),
            ("verify", 4, 4, False), ("verify", 4, 4, True), ("verify", 4, 8, False),
            ("verify", 4, 8, True), ("round", 4, 4, False), ("round", 4, 8, False),
            ("draft", 1, 1, False),
        )
    }  # fmt: skip
    assert set(measured.passes) == expected
    assert {len(samples) for samples in measured.passes.values()} == {2}
    assert all(
        0 < sample.host <= sample.seconds for s in measured.passes.values() for sample in s
    )
    assert {(key.form, key.tokens) for key in measured.parts} == {
        (form, tokens) for form in ("stored", "dense") for tokens in (1, 4, 8)
    }
    assert (measured.caches, measured.columns, measured.backend) == ("slot", 32, "cpu")
    assert measured.target_bytes["stored"] < measured.target_bytes["dense"]
    assert measured.drafter_bytes > 0


@pytest.mark.parametrize("name", ["tiny-gemma4-moe", "tiny-qwen3_5", "tiny-qwen3_5-moe"])
def test_other_architectures_are_measured_too(name: str) -> None:
    """With half of the layers, so that the head is measured alone for the scale."""
    sizes = tiny(name).with_layers(2)
    times = measure_costs(sizes, plan(forms=("stored",), widths=(4,), repeats=1))
    heads = {key.tokens for key in times.passes if key.stage == "head"}
    assert heads == {1, 4, 8}
    assert (times.layers, times.layers_published) == (2, 4)
    assert times.caches == ("native" if "qwen" in name else "slot")


def test_a_form_without_room_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = replace(tiny("tiny-gemma4"), drafter=None)
    room = needed_bytes(geometry, "stored", mx.float32) + 1000
    times = measure_costs(geometry, plan(widths=(4,), repeats=1), free=room)
    assert set(times.target_bytes) == {"stored"}
    assert "GiB needed" in times.skipped["dense"]
    assert times.drafter_bytes == 0
    assert {key.stage for key in times.passes} == {"classic", "verify"}


def arms(*seconds: float) -> tuple[list[Any], list[int]]:
    """Arms whose first sample takes a hundred times as long, on a clock of their own."""
    order: list[int] = []

    def sample(at: int) -> Callable[[], Sample]:
        def take() -> Sample:
            first = at not in order
            order.append(at)
            return Sample((100 if first else 1) * seconds[at], 0.0)

        return take

    made = [
        cost_profile._Arm(PassKey("verify", "stored", at, at), sample(at))
        for at in range(len(seconds))
    ]
    return made, order


def test_what_compiles_is_not_among_the_samples_and_arms_take_turns() -> None:
    made, order = arms(1.0, 2.0, 3.0)
    cost_profile._take_turns(made, plan(repeats=3), clock=lambda: 0.0)
    assert [[sample.seconds for sample in arm.samples] for arm in made] == [
        [1.0] * 3, [2.0] * 3, [3.0] * 3,
    ]  # fmt: skip
    assert order == [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 1, 2]


def test_every_pass_has_a_sample_whatever_the_budget() -> None:
    made, _ = arms(1.0, 1.0)
    readings = iter(range(1000))
    cost_profile._take_turns(
        made, plan(repeats=9, budget=0.0), clock=lambda: float(next(readings))
    )
    assert [len(arm.samples) for arm in made] == [1, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"widths": (1, 2)}, "4 among the widths"),
        ({"widths": (0, 4)}, "must be positive"),
        ({"pads": ()}, "pads of a cost profile must not be empty"),
        ({"repeats": 0}, "repeats of a cost profile must be positive"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**bad)


def test_shapes_are_few() -> None:
    assert plan().shapes() == [(1, 1), (2, 2), (2, 8), (4, 4), (4, 8)]
    assert plan(widths=(4, 8, 16)).shapes() == [(4, 4), (4, 8), (8, 8), (16, 16)]
    assert plan(pads=(1,)).shapes() == [(1, 1), (2, 2), (4, 4)]
