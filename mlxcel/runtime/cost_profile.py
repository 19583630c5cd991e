"""The cost profile of a geometry: classic step, draft, verify by width, and the parts of a pass.

Passes are enqueued as the engine does it, each before the one before it is read, and samples of
all passes take turns, so that a slow drift of the host falls on all of them. The first sample of
every pass, in which a GPU compiles and captures, is discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx
import numpy as np

from mlxcel.hardware.cost_times import CostTimes, PartKey, PartTime, PassKey, Sample, Stage
from mlxcel.hardware.memory import device_bytes
from mlxcel.runtime.cost_parts import Part, head_part, parts_of
from mlxcel.runtime.cost_plan import JUDGED_WIDTH, CostPlan
from mlxcel.runtime.cost_rows import CostRow, row_of
from mlxcel.runtime.geometry import Geometry
from mlxcel.runtime.geometry_drafter import CostDrafter, build_drafter
from mlxcel.runtime.geometry_model import build_target, needed_bytes, require_memory
from mlxcel.runtime.representation import detect_backend

__all__ = ["measure_costs"]

Progress = Callable[[str, int, int], None]
Clock = Callable[[], float]


@dataclass
class _Arm:
    """One pass that is sampled in turn with the others."""

    key: PassKey
    sample: Callable[[], Sample]
    samples: list[Sample] = field(default_factory=list)


class _Form:
    """A target in one form with its row and its drafter, and the passes on them."""

    def __init__(self, row: CostRow, drafter: CostDrafter | None, plan: CostPlan, clock: Clock):
        self.row = row
        self.drafter = drafter
        self._plan = plan
        self._clock = clock
        self._classic_length = plan.context
        # Up to where the buffers of the first length reach: growing them is not a step's cost.
        self._classic_end = (plan.context // plan.length_step + 1) * plan.length_step

    def classic(self, waited: bool) -> Sample:
        """Classic steps, each from a length that no step before had: the shapes of decoding."""
        if self._classic_length + self._plan.rounds > self._classic_end:
            self._classic_length = self._plan.context
        self.row.rewind(self._classic_length)
        self._classic_length += self._plan.rounds
        return self._sampled(self.row.classic, waited)

    def verify(self, width: int, tokens: int, waited: bool) -> Sample:
        """Verifies of the same made-up drafts."""
        self.row.rewind(self._plan.context)
        drafts = mx.full((1, max(width - 1, 1)), 2, mx.uint32)
        return self._sampled(lambda: self.row.verify(width, tokens, drafts), waited)

    def draft(self) -> Sample:
        """Drafts in a chain, as for a block of four; seconds of one of them."""
        drafter, steps = self._beginning(), JUDGED_WIDTH - 1
        found = self._sampled(lambda: drafter.draft(JUDGED_WIDTH), waited=False, pending=False)
        return Sample(found.seconds / steps, found.host / steps)

    def round(self, width: int, tokens: int) -> Sample:
        """Whole rounds: drafts, verify, and what the drafter takes in of it."""
        drafter = self._beginning()

        def one() -> mx.array:
            packed = self.row.verify(width, tokens, drafter.draft(width))
            drafter.absorb()
            return packed

        return self._sampled(one, waited=False)

    def head(self, part: Part) -> Sample:
        """The output head alone."""
        return self._sampled(lambda: part.build()[0], waited=False, pending=False)

    def _beginning(self) -> CostDrafter:
        """The drafter and the row as they were at first."""
        if self.drafter is None:
            raise AssertionError("there is no drafter")
        self.row.rewind(self._plan.context)
        self.drafter.begin()
        return self.drafter

    def _sampled(
        self, build: Callable[[], mx.array], waited: bool, *, pending: bool = True
    ) -> Sample:
        """Time passes in a row, each enqueued before the one before it is read."""
        mx.eval(self.row.pending())
        clock, host, before = self._clock, 0.0, None
        began = clock()
        for _ in range(self._plan.rounds):
            start = clock()
            read = build()
            # Nothing but what is read may be held: a buffer held elsewhere would be copied.
            mx.async_eval([read, *(self.row.pending() if pending else [])])
            host += clock() - start
            if before is not None:
                np.array(before, copy=False)
            if waited:
                np.array(read, copy=False)
            before = read
        np.array(before, copy=False)
        return Sample(
            max(clock() - began, 0.0) / self._plan.rounds, max(host, 0.0) / self._plan.rounds
        )


def measure_costs(
    geometry: Geometry,
    plan: CostPlan,
    *,
    free: int | None = None,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> CostTimes:
    """Build a geometry with made-up weights and measure its passes, on this thread.

    Nothing else should run beside it.

    Parameters
    ----------
    geometry : Geometry
        With as many layers as are to be built.
    plan : CostPlan
        What to measure.
    free : int, optional
        Available bytes; read from the device by default.
    clock : callable
        Seconds; tests pass their own.
    progress : callable, optional
        Called with a label, the bytes of weights made and their total.

    Raises
    ------
    LoadError
        A form that was asked for alone does not fit into memory, before anything is allocated;
        or the model's passes cannot be repeated.
    """
    began, backend = clock(), detect_backend()
    dtype = mx.float32 if backend == "cpu" else mx.bfloat16
    fitting, skipped = _fitting(geometry, plan, dtype, free)
    built = partial(_built, geometry, plan, dtype, clock=clock, progress=progress)
    forms = {name: built(name) for name in fitting}
    scaled = geometry.layers < geometry.layers_published
    arms = [arm for name, form in forms.items() for arm in _arms(name, form, plan, dtype, scaled)]
    _take_turns(arms, plan, clock)
    parts: dict[PartKey, PartTime] = {}
    for name, form in forms.items():
        parts |= _parts(name, form, plan, dtype, clock)
    row = next(iter(forms.values())).row
    drafter = next(iter(forms.values())).drafter
    return CostTimes(
        layers=geometry.layers,
        layers_published=geometry.layers_published,
        context=plan.context,
        columns=row.columns(JUDGED_WIDTH),
        backend=backend,
        dtype=str(dtype).removeprefix("mlx.core."),
        caches=row.kind,
        passes={arm.key: tuple(arm.samples) for arm in arms},
        parts=parts,
        target_bytes={name: form.row.target.nbytes for name, form in forms.items()},
        drafter_bytes=0 if drafter is None else drafter.nbytes,
        skipped=skipped,
        seconds=max(clock() - began, 0.0),
    )


def _built(
    geometry: Geometry,
    plan: CostPlan,
    dtype: mx.Dtype,
    form: str,
    *,
    clock: Clock,
    progress: Progress | None,
) -> _Form:
    """Target, row and drafter in one form of the target's weights."""
    target = build_target(geometry, form, dtype, progress)
    row = row_of(target, plan.context, widest=plan.widest, length_step=plan.length_step)
    drafter = None
    if geometry.drafter is not None:
        drafter = build_drafter(geometry, row, dtype, plan.context)
    return _Form(row, drafter, plan, clock)


def _fitting(
    geometry: Geometry, plan: CostPlan, dtype: mx.Dtype, free: int | None
) -> tuple[list[str], dict[str, str]]:
    """Forms with room beside each other; what was asked for alone must have it."""
    room = device_bytes(detect_backend()) if free is None else free
    found: list[str] = []
    skipped: dict[str, str] = {}
    for form in plan.forms:
        needed = needed_bytes(geometry, form, dtype)
        if not found and form == plan.forms[-1]:
            require_memory(f"{geometry.name} {form}", needed, room)
        if needed > room:
            skipped[form] = f"{needed / 2**30:.1f} GiB needed, {room / 2**30:.1f} GiB available"
            continue
        room -= needed
        found.append(form)
    return found, skipped


def _arms(
    name: str, form: _Form, plan: CostPlan, dtype: mx.Dtype, scaled: bool
) -> list[_Arm]:
    """Every pass of a form."""

    def key(stage: Stage, width: int, tokens: int, waited: bool = False) -> PassKey:
        return PassKey(stage, name, width, tokens, waited)

    arms = [
        _Arm(key("classic", 1, 1, waited), partial(form.classic, waited))
        for waited in (False, True)
    ]
    for width, tokens in plan.shapes():
        for waited in (False, True) if width == JUDGED_WIDTH else (False,):
            sample = partial(form.verify, width, tokens, waited)
            arms.append(_Arm(key("verify", width, tokens, waited), sample))
        if form.drafter is not None and width == JUDGED_WIDTH:
            arms.append(_Arm(key("round", width, tokens), partial(form.round, width, tokens)))
    if form.drafter is not None:
        arms.append(_Arm(key("draft", 1, 1), form.draft))
    if scaled:
        for tokens in sorted({1, *(tokens for _, tokens in plan.shapes())}):
            head = head_part(form.row, tokens, dtype)
            arms.append(_Arm(key("head", tokens, tokens), partial(form.head, head)))
    return arms


def _take_turns(arms: Sequence[_Arm], plan: CostPlan, clock: Clock) -> None:
    """Sample all arms forwards and backwards in turn, until all have enough or time is up."""
    for arm in arms:
        arm.sample()  # compiles
    end = clock() + plan.budget
    for repeat in range(plan.repeats):
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            if repeat and clock() >= end:
                return
            arm.samples.append(arm.sample())


def _parts(
    name: str, form: _Form, plan: CostPlan, dtype: mx.Dtype, clock: Clock
) -> dict[PartKey, PartTime]:
    """Take apart a classic step and the verifies of `JUDGED_WIDTH`."""
    found: dict[PartKey, PartTime] = {}
    fed = {tokens for width, tokens in plan.shapes() if width == JUDGED_WIDTH}
    for tokens in sorted({1, *fed}):
        form.row.rewind(plan.context)
        for part in parts_of(form.row, tokens, dtype):
            mx.eval(part.build())  # compiles
            seconds = []
            for _ in range(plan.repeats):
                began = clock()
                mx.eval(part.build())
                seconds.append(max(clock() - began, 0.0))
            key = PartKey(part.name, name, tokens)
            found[key] = PartTime(tuple(seconds), part.nbytes, part.flops)
    return found
