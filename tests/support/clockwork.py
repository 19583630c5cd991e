"""Seconds of our choosing under a real engine: what a round costs depends on its width only.

Three machines, because the wall time of a pipelined round is another on each:

- ``eager``: enqueueing does the work (MLX's CPU backend);
- ``queue``: the device works in order, reading a round waits for its end (a GPU);
- ``host``: as ``queue``, but the host's time to build a round exceeds the device's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxcel.config import Settings
from mlxcel.decide.exactness import VetoState, unprobed
from mlxcel.decide.gate import mtp_b1_decision
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.verdict import VerdictKey
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.governor import Facts, Governor
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.engine.vetoes import Known, Probe
from mlxcel.runtime.loader import LoadedModel

Cost = Callable[[int], float]

KEY = VerdictKey(
    target="t", drafter="d", host="h", width=4, weights="dense float32", kernel="wide", mlx="1",
    mlxcel="1", round_loop=ROUND_LOOP_VERSION, numerics="fast",
)  # fmt: skip

MACHINES = ("eager", "queue", "host")


class Clockwork:
    """A clock for `Engine`; `attach` it to the engine that was made with it.

    ``cost`` is seconds by block width and may be exchanged while it runs; ``rows`` are those of
    the round that it is asked about.
    """

    def __init__(self, cost: Cost, machine: str = "eager") -> None:
        self.cost = cost
        self.machine = machine
        self.now = 0.0
        self.ran: list[int] = []
        self.rows = 0
        self._device = 0.0
        self._ends: deque[float] = deque()

    def __call__(self) -> float:
        return self.now

    def attach(self, engine: Engine) -> Engine:
        """Let rounds of this engine take time."""
        verify, settle = engine.batch.verify, engine.scheduler.settle

        def timed_verify(drafts: mx.array | None, widths: Sequence[int], **more: Any) -> Any:
            width, self.rows = max(widths), len(widths)
            self.ran.append(width)
            seconds = self.cost(width)
            if self.machine != "queue":
                self.now += seconds
            busy = {"eager": 0.0, "queue": seconds, "host": seconds / 2}[self.machine]
            self._device = max(self._device, self.now) + busy
            self._ends.append(self._device)
            return verify(drafts, widths, **more)

        def timed_settle(*args: Any) -> Any:
            self.now = max(self.now, self._ends.popleft())
            return settle(*args)

        engine.batch.verify = timed_verify  # type: ignore[method-assign,assignment]
        engine.scheduler.settle = timed_settle  # type: ignore[method-assign,assignment]
        return engine


def exact(width: int, *_: Any) -> VetoState:
    """Every width is found exact."""
    return VetoState(
        vetoed=False, required="token", reason="", record=unprobed(width, "a test")
    )  # fmt: skip


def steered_engine(
    model: LoadedModel, drafter: Drafter, settings: Settings, clock: Clockwork, folder: Path,
    *, probe: Probe = exact, known: Known = exact, key: VerdictKey = KEY,
) -> Engine:  # fmt: skip
    """An engine whose gate says yes, on this clock; its memory lies in ``folder``."""
    override = settings.enable_mtp_b1
    static = mtp_b1_decision(
        None if override is None else ("on" if override else "off"), True, True, host="this test"
    )
    governor = Governor(
        lambda: Facts(static, lambda width: replace(key, width=width)),
        probe, VerdictStore(folder), settings, known=known,
        sequential=drafter.sequential, serial=drafter.on_host, clock=lambda: 1.8e9,
    )  # fmt: skip
    return clock.attach(Engine(model, drafter, settings, governor=governor, clock=clock))
