"""One campaign from a loaded model to a record: guards around everything that is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mlxcel.bench.arms import Runner
from mlxcel.bench.guarded import OpenGuards, unguarded
from mlxcel.bench.measured import record_id, record_of, subject_of
from mlxcel.bench.protocol import Cell, Plan, Say, measure
from mlxcel.bench.provenance import collect, record_host
from mlxcel.decide.records import Record
from mlxcel.errors import MlxcelError
from mlxcel.hardware.host import Host as Machine

__all__ = ["Campaign", "Ended", "Opened", "run_campaign"]


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A loaded pairing.

    Attributes
    ----------
    runner : Runner
        Runs the arms.
    machine : Machine
        The host it runs on.
    facts : mapping
        See `mlxcel.engine.bench_facts.bench_facts`.
    """

    runner: Runner
    machine: Machine
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to measure, and under which name to write it down.

    Attributes
    ----------
    pairing, drafter : str
        Names for the record.
    tool : str
        The command, as people type it.
    plan : Plan
        Prompts, widths, repetitions.
    command : sequence of str
        ``sys.argv``.
    environ : mapping of str to str
        The environment.
    name : str or None
        Id of the record; ``None``: pairing, chip and time.
    notes : str or None
        What else there is to say.
    guards : callable
        Starts the guards.
    clock : callable
        Steady seconds.
    sleep : callable
        Waits for so many seconds.
    now : callable
        The time of day, UTC.
    say : callable
        Told what is going on.
    """

    pairing: str
    drafter: str
    tool: str
    plan: Plan
    command: Sequence[str]
    environ: Mapping[str, str]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    name: str | None = None
    notes: str | None = None
    guards: OpenGuards = field(default=unguarded)
    now: Callable[[], datetime] = field(default=_utc)
    say: Say = field(default=lambda text: None)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a campaign ended.

    Attributes
    ----------
    record : Record
        Every prompt that was finished.
    failure : BaseException or None
        What ended it before the last prompt, for the caller to raise once the record is kept.
    """

    record: Record
    failure: BaseException | None


def run_campaign(campaign: Campaign, load: Callable[[], Opened]) -> Ended:
    """Measure and make a record.

    Parameters
    ----------
    campaign : Campaign
        What to measure.
    load : callable
        Loads the pairing; called under the guards, since kernels may be timed by it.

    Returns
    -------
    Ended
        Every row is in the record, also one that breaks a limit. A failure or an interrupt
        after the first prompt costs the prompts that are not finished, and no more.
    """
    started, began = campaign.now(), campaign.clock()
    cells: list[Cell] = []
    failure: BaseException | None = None
    with campaign.guards() as guards:
        opened = load()
        subject = subject_of(campaign.pairing, campaign.drafter, opened.facts)
        measuring = measure(
            opened.runner, campaign.plan,
            clock=campaign.clock, sleep=campaign.sleep, say=campaign.say,
        )  # fmt: skip
        try:
            for cell in measuring:
                cells.append(cell)  # one by one: those before a failure stay
        except (MlxcelError, KeyboardInterrupt) as error:
            if not cells:
                raise
            failure = error
    provenance = collect(
        opened.machine,
        kernel=subject.kernel,
        exactness=subject.exactness,
        command=campaign.command,
        environ=campaign.environ,
        started=started,
        seconds=campaign.clock() - began,
        guards=guards.report(),
    )
    host = record_host(opened.machine)
    name = campaign.name or record_id(
        campaign.pairing, campaign.drafter, host.chip, started.strftime("%Y-%m-%d-%H%M%S")
    )
    record = record_of(
        cells,
        name=name,
        tool=campaign.tool,
        tokens=campaign.plan.tokens,
        host=host,
        subject=subject,
        provenance=provenance,
        notes=_notes(campaign.notes, failure),
    )
    return Ended(record, failure)


def _notes(given: str | None, failure: BaseException | None) -> str | None:
    if failure is None:
        return given
    early = f"ended early ({type(failure).__name__}): prompts are missing"
    return early if given is None else f"{given}; {early}"
