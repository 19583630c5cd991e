"""Kernel profile: the time of a target's real projections at few rows, stored and dense.

Facts only; ``mlxcel.decide.kernels`` draws the conclusions. The weights are made up, since
no kernel's time depends on their values: a profile can be taken before a model is loaded.
MLX is imported when something is measured, not before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mlxcel.hardware.memory import available_bytes

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = [
    "BUDGET_SECONDS",
    "ROWS",
    "Clock",
    "Form",
    "KernelTimes",
    "Projection",
    "measure_kernels",
]

Clock = Callable[[], float]
Form = Literal["stored", "dense"]

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Row counts that are timed."""

BUDGET_SECONDS = 4.0
"""Time after which no further repeat begins; every cell is timed once whatever it takes."""

MAX_REPEATS = 9
MIN_EVALUATION = 2e-3  # seconds; below it one evaluation holds several products
MAX_CALLS = 64
POOL_BYTES = 32 << 20  # copies of small weights, so that they come from memory as in decoding
SPARE = 1.25  # of the bytes a form needs, before it is made at all
DEAR = 0.15  # seconds
_TILE = 256
_LEAST = 4096  # outputs of a part


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One projection of a target, as its checkpoint stores it.

    Attributes
    ----------
    name : str
        Where it is, such as ``"mlp"`` or ``"head"``.
    inputs, outputs : int
        Features in and out.
    bits, group_size : int
        Of the quantization; 0 when the checkpoint is not quantized.
    mode : str
        Of the quantization, ``""`` without one.
    count : float
        How many of its size make up what one pass reads, for weighing.
    """

    name: str
    inputs: int
    outputs: int
    bits: int = 0
    group_size: int = 0
    mode: str = ""
    count: float = 1.0

    @property
    def forms(self) -> tuple[Form, ...]:
        """Forms in which it could be served."""
        return ("stored", "dense") if self.bits else ("dense",)

    def nbytes(self, form: Form, itemsize: int) -> int:
        """Bytes of its weights in a form, with elements or scales of ``itemsize`` bytes."""
        elements = self.inputs * self.outputs
        if form == "dense":
            return elements * itemsize
        return elements * self.bits // 8 + 2 * itemsize * elements // max(self.group_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """What was measured.

    Attributes
    ----------
    projections : tuple of Projection
        What was timed.
    dtype : str
        Type of activations, scales and dense weights.
    samples : mapping of (name, form, rows) to tuple of float
        Seconds per product, in order; the warm-up is not among them.
    skipped : mapping of (name, form) to str
        What was not timed and why.
    seconds : float
        What the whole took.
    taken_on : str
        Day, as 2026-11-30; empty where it is not known.
    """

    projections: tuple[Projection, ...]
    dtype: str
    samples: Mapping[tuple[str, str, int], tuple[float, ...]]
    skipped: Mapping[tuple[str, str], str] = field(default_factory=dict)
    seconds: float = 0.0
    taken_on: str = ""

    def table(self) -> dict[tuple[str, str], dict[int, float]]:
        """Median seconds by (projection, form) and rows."""
        found: dict[tuple[str, str], dict[int, float]] = {}
        for (name, form, rows), samples in sorted(self.samples.items()):
            # With two samples the lower one: disturbances only ever add.
            found.setdefault((name, form), {})[rows] = statistics.median_low(samples)
        return found

    @property
    def counts(self) -> dict[str, float]:
        """Weight of each projection in a pass, by name."""
        return {projection.name: projection.count for projection in self.projections}


class _Cell:
    """One projection in one form at one number of rows."""

    def __init__(
        self, key: tuple[str, str, int], outputs: int, run: Callable[[int, int], None]
    ) -> None:
        self.key = key
        self.run = run  # evaluates so many products with so many outputs
        self.outputs = outputs
        self.parts = 1
        self.calls = 1
        self.samples: list[float] = []
        self.cost = 0.0

    def sample(self, clock: Clock) -> None:
        """Time one evaluation; a part of the outputs counts for the whole."""
        began = clock()
        self.run(self.calls, self.outputs // self.parts)
        self.cost = max(clock() - began, 0.0)
        scale = self.outputs / (self.outputs // self.parts)
        self.samples.append(self.cost / self.calls * scale)

    def begin(self, clock: Clock, before: _Cell | None, *, compiles: bool) -> None:
        """Take the first sample and find out how much one evaluation should hold."""
        if compiles:
            self.run(1, self.outputs)
        elif before is not None and before.key[:2] == self.key[:2]:
            expected = before.samples[-1] * self.key[2] / before.key[2]
            while expected > DEAR * self.parts and self.outputs // self.parts >= 2 * _LEAST:
                self.parts *= 2
        self.sample(clock)
        if 0 < self.cost < MIN_EVALUATION:
            self.calls = min(int(MIN_EVALUATION / self.cost) + 1, MAX_CALLS)
            self.samples.clear()
            if compiles:  # the longer graph is another one
                self.run(self.calls, self.outputs)
            self.sample(clock)


def measure_kernels(
    projections: Sequence[Projection],
    dtype: mx.Dtype,
    *,
    rows: Sequence[int] = ROWS,
    clock: Clock = time.perf_counter,
    budget: float = BUDGET_SECONDS,
    free: int | None = None,
    compiles: bool | None = None,
) -> KernelTimes:
    """Time projections at few rows, in every form that fits into memory.

    Cells take turns, so that a slow drift of the host falls on all of them, and cheap cells
    get more repeats than dear ones once the budget nears its end. A product that would take
    over `DEAR` seconds is timed on a half, a quarter ... of its outputs, in which time is
    linear once it is that long.

    Parameters
    ----------
    projections : sequence of Projection
        What to time.
    dtype : mx.Dtype
        Type of activations that would be served, also of scales and dense weights.
    rows : sequence of int
        Row counts.
    clock : callable
        Seconds; tests pass their own.
    budget : float
        Seconds after which no further repeat begins.
    free : int, optional
        Available bytes; read from the host by default.
    compiles : bool, optional
        Whether the first evaluation of a shape compiles or captures it, as on a GPU, so that it
        is discarded; by default where MLX's default device is one. On an H200 it took 100 times
        what the next ones did.

    Notes
    -----
    Not thread-safe: a measurement, so nothing else should run beside it.
    """
    began = clock()
    cells, skipped = _cells(
        projections, dtype, sorted(rows), available_bytes() if free is None else free
    )
    _take_turns(cells, clock, began, budget, _on_gpu() if compiles is None else compiles)
    return KernelTimes(
        projections=tuple(projections),
        dtype=str(dtype).removeprefix("mlx.core."),
        samples={cell.key: tuple(cell.samples) for cell in cells},
        skipped=skipped,
        seconds=max(clock() - began, 0.0),
    )


def _cells(
    projections: Sequence[Projection], dtype: mx.Dtype, rows: Sequence[int], room: int
) -> tuple[list[_Cell], dict[tuple[str, str], str]]:
    """Everything to be timed, and what has no room."""
    cells: list[_Cell] = []
    skipped: dict[tuple[str, str], str] = {}
    for projection in projections:
        for form in projection.forms:
            needed = int(max(projection.nbytes(form, dtype.size), POOL_BYTES) * SPARE)
            if needed > room:
                skipped[projection.name, form] = (
                    f"{needed / 2**20:.0f} MiB needed, {room / 2**20:.0f} MiB available"
                )
                continue
            room -= needed
            products = _Products(projection, form, dtype)
            cells += [
                _Cell((projection.name, form, count), projection.outputs, products.runner(count))
                for count in rows
            ]
    return cells, skipped


def _on_gpu() -> bool:
    import mlx.core as mx

    return bool(mx.default_device() == mx.gpu)


def _take_turns(
    cells: list[_Cell], clock: Clock, began: float, budget: float, compiles: bool
) -> None:
    for cell in cells:
        cell.run(0, _TILE)  # warm-up: kernels are compiled, weights made
    before = None
    for cell in cells:
        cell.begin(clock, before, compiles=compiles)
        before = cell
    # Compiling may have used up the budget, and one sample of a cell is none.
    end = max(began + budget, clock() + budget / 4)
    while True:
        left = end - clock()
        open_cells = [c for c in cells if len(c.samples) < MAX_REPEATS and c.cost <= left]
        if not open_cells:
            return
        min(open_cells, key=lambda c: (len(c.samples), c.cost)).sample(clock)


class _Products:
    """Weights of one projection in one form, several copies of them where they are small."""

    def __init__(self, projection: Projection, form: Form, dtype: mx.Dtype) -> None:
        self._projection = projection
        self._form = form
        self._dtype = dtype
        nbytes = max(projection.nbytes(form, dtype.size), 1)
        self._copies = 1 if 2 * nbytes > POOL_BYTES else min(POOL_BYTES // nbytes, MAX_CALLS)
        self._weights: list[Any] = []
        self._turn = 0

    def runner(self, rows: int) -> Callable[[int, int], None]:
        """A function that evaluates so many products with so many outputs; 0 warms up."""
        import mlx.core as mx

        x = mx.random.normal((1, rows, self._projection.inputs)).astype(self._dtype)

        def run(calls: int, outputs: int) -> None:
            if not self._weights:
                self._weights = list(self._made())
                mx.eval(self._weights)
            products = [self._product(x, self._next(), outputs) for _ in range(max(calls, 1))]
            mx.eval(x, products)

        return run

    def _next(self) -> Any:
        self._turn = (self._turn + 1) % len(self._weights)
        return self._weights[self._turn]

    def _made(self) -> Iterator[Any]:
        import mlx.core as mx

        shape = self._projection
        tile = mx.random.normal((min(_TILE, shape.outputs), shape.inputs)) * 0.02
        tile = tile.astype(self._dtype)
        parts = [tile]
        if self._form == "stored":
            parts = list(
                mx.quantize(tile, group_size=shape.group_size, bits=shape.bits, mode=shape.mode)
            )
        repeats = -(-shape.outputs // int(tile.shape[0]))
        for _ in range(self._copies):
            yield [mx.tile(part, (repeats, 1))[: shape.outputs] + 0 for part in parts]

    def _product(self, x: mx.array, parts: Sequence[mx.array], outputs: int) -> mx.array:
        import mlx.core as mx

        if outputs < self._projection.outputs:
            parts = [part[:outputs] for part in parts]

        if self._form == "dense":
            return x @ parts[0].T
        shape = self._projection
        return mx.quantized_matmul(
            x,
            parts[0],
            parts[1],
            parts[2] if len(parts) > 2 else None,
            transpose=True,
            group_size=shape.group_size,
            bits=shape.bits,
            mode=shape.mode,
        )
