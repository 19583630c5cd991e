"""The gate's decision for any host, present or not, as the steps that led to it.

Pure: what is known of host, pairing and settings comes in; `mlxcel gate explain` shows what
goes out. The steps use the same functions as the scheduler does, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.chips import GENERATIONS, Chip
from mlxcel.decide.estimate import SAMPLE_TARGET
from mlxcel.decide.explain_evidence import Cited, Dated, cite, dated
from mlxcel.decide.gate import OVERRIDE, GateDecision, mtp_b1_decision
from mlxcel.decide.records import Pairing, Record
from mlxcel.decide.verdict import SPEEDUP_CEILING, SPEEDUP_FLOOR

__all__ = [
    "Explanation",
    "KernelFinding",
    "Question",
    "Step",
    "StepName",
    "batch_capability",
    "explain",
    "find_pairing",
]

StepName = Literal[
    "pairing", "override", "chip", "projections", "gate", "evidence", "policy", "exactness"
]
Level = Literal["off", "token", "bitwise"]


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """What the kernel profile of a host found, and where that is kept."""

    wide: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes
    ----------
    chip : Chip
        From `mlxcel.decide.chips.identify`.
    batch_capable : bool
        Whether the target can decode several sequences together.
    batch_basis : str
        Where that is known from, see `batch_capability`.
    target, drafter : str or None
        Names, ``None`` for any.
    pairing : Pairing or None
        The pairing of that name in the evidence; cited alone then.
    env_value : str or None
        Value of ``MLXCEL_ENABLE_MTP_B1``.
    adaptive : bool
        Whether the adaptive policy is on.
    exactness : {"off", "token", "bitwise"}
        Level that the exactness probe must reach.
    profile : KernelFinding or None
        The kernel profile of the host, where there is one.
    """

    chip: Chip
    batch_capable: bool
    batch_basis: str
    target: str | None = None
    drafter: str | None = None
    pairing: Pairing | None = None
    env_value: str | None = None
    adaptive: bool = True
    exactness: Level = "token"
    profile: KernelFinding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what came out in a few words, why, on which evidence (ids and dates).

    ``decides`` marks the step that gave the decision: exactly one of all.
    """

    name: StepName
    outcome: str
    reason: str
    evidence: tuple[Dated, ...] = ()
    decides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The static gate's decision and all steps, in order."""

    host: str
    batch_capable: bool
    decision: GateDecision
    steps: tuple[Step, ...]

    def step(self, name: StepName) -> Step:
        """The step of a name."""
        return next(step for step in self.steps if step.name == name)


def find_pairing(records: Sequence[Record], target: str, drafter: str | None) -> Pairing | None:
    """The pairing that the evidence has under names, upper and lower case alike.

    Parameters
    ----------
    records : sequence of Record
        All evidence.
    target : str
        Name of a pairing (``"Gemma 4 31B"``) or of its target (``"gemma-4-31b-it-4bit"``).
    drafter : str or None
        Name of its drafter; ``None`` for any.
    """
    for record in records:
        pairing = record.pairing
        names = (pairing.name.casefold(), pairing.target.casefold())
        if target.casefold() in names and drafter in (None, pairing.drafter):
            return pairing
    # Another drafter of a known target: whether it can batch is the target's matter alone.
    return find_pairing(records, target, None) if drafter is not None else None


def batch_capability(stated: bool | None, pairing: Pairing | None) -> tuple[bool, str]:
    """Whether a target can batch, and where that is known from.

    What is stated outranks the evidence; without either it is taken for batch-capable, the
    case that the gate governs.
    """
    known = pairing.batch_capable if pairing else None
    if stated is not None:
        differs = pairing and known is not None and known is not stated
        return stated, "as stated" + (", against the evidence" if differs else "")
    if pairing and known is not None:
        return known, f"from the evidence on {pairing.name}"
    return True, "taken for batch-capable; say --not-batch-capable where it cannot"


def explain(question: Question, records: Sequence[Record]) -> Explanation:
    """Decide as the scheduler's static gate does, and tell every step.

    Parameters
    ----------
    question : Question
        What is asked.
    records : sequence of Record
        All evidence.

    Raises
    ------
    ConfigError
        ``env_value`` is no boolean.
    """
    wide, projections = _projections(question, records)
    decision = mtp_b1_decision(
        question.env_value, question.batch_capable, wide, host=question.chip.name
    )
    steps = (
        _pairing(question, decision),
        _override(question, decision),
        _chip(question.chip),
        projections,
        _gate(decision),
        _evidence(question, records),
        _policy(question, decision),
        _exactness(question),
    )
    return Explanation(
        host=question.chip.name,
        batch_capable=question.batch_capable,
        decision=decision,
        steps=steps,
    )


def _pairing(question: Question, decision: GateDecision) -> Step:
    names = " + ".join(name for name in (question.target, question.drafter) if name)
    reason = f"{names or 'no pairing named'}: {question.batch_basis}"
    if question.pairing and question.pairing.kind != "mtp":
        reason += f"; the gate governs MTP drafters only, this one is {question.pairing.kind}"
    return Step(
        name="pairing",
        outcome="batch-capable" if question.batch_capable else "cannot batch",
        reason=reason,
        decides=decision.source == "not-batchable",
    )


def _override(question: Question, decision: GateDecision) -> Step:
    if question.env_value is None:
        return Step(name="override", outcome="not set", reason=f"{OVERRIDE} is not set")
    return Step(
        name="override",
        outcome="on" if decision.run else "off",
        reason=f"{decision.reason}; it outranks chip, evidence and policy",
        decides=True,
    )


def _chip(chip: Chip) -> Step:
    what = f"{chip.generation} {chip.variant}".strip()
    outcome = what if chip.status == "known" and what else chip.status
    words = {
        "known": "is in the table of Apple chips",
        "newer": "is newer than the table of Apple chips",
        "virtual": "hides the chip behind a virtual machine or a translated process",
        "unknown": "is not in the table of Apple chips",
    }
    details = [f"{chip.name!r} {words[chip.status]}"]
    if chip.gpu is not None:
        details.append(f"GPU generation {chip.gpu}")
    if chip.bandwidth is not None:
        details.append(f"{chip.bandwidth:g} GB/s")
    return Step(name="chip", outcome=outcome, reason=", ".join(details))


def _projections(question: Question, records: Sequence[Record]) -> tuple[bool | None, Step]:
    """Whether quantized projections are wide: by the table, else by the kernel profile."""
    chip, profile = question.chip, question.profile
    words = {True: "wide", False: "narrow"}
    if chip.wide is None:
        if profile is None:
            return None, Step(name="projections", outcome="unmeasured", reason=chip.reason)
        reason = f"the table has no answer, the kernel profile has: {profile.source}"
        outcome = f"{words[profile.wide]} (kernel profile)"
        return profile.wide, Step(name="projections", outcome=outcome, reason=reason)
    reason = chip.reason
    if profile is not None and profile.wide is not chip.wide:
        reason += (
            f"; the kernel profile of this host disagrees and finds it {words[profile.wide]} "
            f"({profile.source}): look into it, or set {OVERRIDE}"
        )
    entry = GENERATIONS.get(chip.generation)
    return chip.wide, Step(
        name="projections",
        outcome=f"{words[chip.wide]} ({chip.basis})",
        reason=reason,
        evidence=dated(entry.evidence if entry else (), records),
    )


def _gate(decision: GateDecision) -> Step:
    return Step(
        name="gate",
        outcome="run" if decision.run else "decline",
        reason=decision.reason,
        decides=decision.source in ("host", "unmeasured"),
    )


def _evidence(question: Question, records: Sequence[Record]) -> Step:
    name = question.pairing.name if question.pairing else None
    found: Cited = cite(question.chip, question.batch_capable, name, records)
    return Step(
        name="evidence", outcome=found.outcome, reason=found.reason, evidence=found.evidence
    )


def _policy(question: Question, decision: GateDecision) -> Step:
    """What the adaptive policy adds on a host that serves the pairing."""
    says = "runs" if decision.run else "declines"
    if decision.source == "override":
        return Step(
            name="policy", outcome="forced", reason="the override forces it; nothing is measured"
        )
    if not question.adaptive:
        return Step(
            name="policy",
            outcome="off",
            reason=f"MLXCEL_MTP_ADAPTIVE is off: the static gate alone decides, it {says}",
        )
    return Step(
        name="policy",
        outcome="measures first",
        reason=f"on such a host the first {SAMPLE_TARGET} or more bursts run and are measured, "
        f"whatever the gate says; then {SPEEDUP_FLOOR}x or more enables, {SPEEDUP_CEILING}x or "
        f"less declines, and between them the static gate decides: it {says}",
    )


def _exactness(question: Question) -> Step:
    """What the exactness probe adds: the only one that outranks the override."""
    if question.exactness == "off":
        return Step(
            name="exactness",
            outcome="off",
            reason="MLXCEL_MTP_EXACTNESS is off: bursts run unchecked, and the output may differ "
            "from classic decode",
        )
    return Step(
        name="exactness",
        outcome=f"{question.exactness} required",
        reason="on such a host the probe compares a verify with single steps before the first "
        "burst of the pairing; a failure, or a probe that has not run, declines and outranks "
        "policy, gate and override",
    )
