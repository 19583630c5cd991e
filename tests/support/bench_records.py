"""Measured records made on a simulated host."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mlxcel.bench.campaign import Campaign, Opened, run_campaign
from mlxcel.bench.protocol import Plan
from mlxcel.decide.records import Record
from mlxcel.hardware.blas import BlasChoice
from mlxcel.hardware.host import Host
from tests.support.bench_host import SimulatedHost

QUIET = {
    "quiet": {"ran": True, "passed": True, "reason": None},
    "contention": {"ran": True, "passed": True, "reason": None, "samples": 9},
}
FACTS = {
    "target": "target-4bit",
    "target_quantization": "4-bit",
    "drafter_kind": "mtp",
    "batch_capable": True,
    "form": "dense float32",
    "kernel": "wide",
    "exactness": [("bitwise", "width 4: equal to the last bit")],
}
MACHINE = Host(
    backend="cpu", chip="Test CPU", cores=2, memory_bytes=16 * 2**30, available_bytes=2**30,
    gpu_memory_bytes=0, system="Linux (x86_64)", python="3.11.9",
    blas=BlasChoice(name="OpenBLAS 0.3", reason="a test", active=True), compiler=None,
    versions={"mlx": "0.32.4", "mlxcel": "0.1.0", "mlx-lm": None},
)  # fmt: skip


class FixedGuards:
    """Guards that report what they were given."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._report = report
        self.inside = False

    def __enter__(self) -> FixedGuards:
        self.inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self.inside = False

    def report(self) -> dict[str, Any]:
        return self._report


def campaign(host: SimulatedHost, plan: Plan, **changes: Any) -> Campaign:
    """A campaign on a simulated host, guarded and quiet unless ``changes`` say otherwise."""
    values: dict[str, Any] = {
        "pairing": "test",
        "drafter": "head",
        "tool": "mlxcel bench speculative",
        "plan": plan,
        "command": ("mlxcel", "bench", "speculative"),
        "environ": {"OMP_NUM_THREADS": "2", "HOME": "elsewhere"},
        "clock": host.clock,
        "sleep": host.sleep,
        "guards": lambda: FixedGuards(QUIET),
        "now": lambda: datetime(2026, 11, 30, 21, 5, tzinfo=UTC),
    }
    return Campaign(**values | changes)


def measured_record(
    host: SimulatedHost | None = None, plan: Plan | None = None, **changes: Any
) -> Record:
    """A record measured on a simulated host; steady and publishable by default."""
    host = host or SimulatedHost(noise=0.002)
    plan = plan or Plan(prompts={"code": "c", "prose": "p"}, widths=(4,), tokens=41)
    opened = Opened(runner=host, machine=MACHINE, facts=FACTS)
    return run_campaign(campaign(host, plan, **changes), lambda: opened).record
