"""How a pairing stands, for people: what decides about it, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlxcel.decide.exactness import VetoState
from mlxcel.decide.gate import GateDecision
from mlxcel.engine.vetoes import Vetoes

if TYPE_CHECKING:
    from mlxcel.engine.governor import Facts

__all__ = ["static_standing", "with_evidence"]


def static_standing(width: int, facts: Facts, exactness: VetoState | None) -> dict[str, Any]:
    """State of a width that the static gate decides about, in the form of `MtpPolicy.snapshot`.

    Parameters
    ----------
    width : int
        Block width.
    facts : Facts
        Of the pairing.
    exactness : VetoState or None
        What the probe found; ``None`` where it was not asked, because the gate declined.
    """
    gate = facts.static
    veto = exactness.reason if exactness is not None else ""
    state = "forced" if gate.source == "override" else "static"
    return {
        **asdict(facts.names),
        "state": "exactness_declined" if veto else state,
        "run": gate.run and not veto,
        "reason": f"the exactness probe declined: {veto}" if veto else gate.reason,
        "width": width,
        "veto": veto or None,
    }


def with_evidence(
    standing: Mapping[str, Any],
    gate: GateDecision,
    vetoes: Vetoes,
    controller: Any,
) -> dict[str, Any]:
    """The same with what the gate says, what the probe found, and the width controller's state.

    Parameters
    ----------
    standing : mapping
        State of one width.
    gate : GateDecision
        The static gate's answer, whoever decides.
    vetoes : Vetoes
        What is known of exactness.
    controller : object
        JSON values.
    """
    exactness = vetoes.found(standing["width"])
    return {
        **standing,
        "gate": asdict(gate),
        "exactness": None if exactness is None else exactness.to_dict(),
        "controller": controller,
    }
