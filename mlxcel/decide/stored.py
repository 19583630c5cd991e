"""Stored verdicts of the adaptive policy, read for people: whatever a file holds, it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxcel.decide._fields import Fields
from mlxcel.decide.exactness import VetoState
from mlxcel.decide.policy import CLOCK_SLACK
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.verdict import VERDICT_VERSION, PairingNames, Verdict, VerdictKey, parse_json
from mlxcel.errors import ConfigError, LoadError

__all__ = ["Stored", "StoredState", "read_stored"]

StoredState = Literal[
    "runs", "declined", "left to the gate", "vetoed", "elsewhere", "outdated", "corrupt"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One file.

    Attributes
    ----------
    name : str
        Name of the file.
    state : str
        What the verdict says; ``vetoed`` where exactness forbids it, ``elsewhere`` where it is
        of another host, ``outdated`` where the policy would measure again, ``corrupt`` where
        nothing can be read.
    reason : str
        Why, for people.
    names : PairingNames
        What people call the pairing and its host.
    key, verdict : VerdictKey and Verdict, or None
        What was read.
    age_seconds : float or None
        Since it was settled.
    due_at : float or None
        When it is measured again at the latest, in seconds since 1970; ``None`` where that
        is so at the next use.
    exactness : VetoState or None
        What the exactness probe found for it here; ``None`` where it has not been asked.
    """

    name: str
    state: StoredState
    reason: str
    names: PairingNames = field(default_factory=PairingNames)
    key: VerdictKey | None = None
    verdict: Verdict | None = None
    age_seconds: float | None = None
    due_at: float | None = None
    exactness: VetoState | None = None

    @property
    def in_force(self) -> bool:
        """Whether the policy of this host would go by it."""
        return self.state in ("runs", "declined", "left to the gate")

    def judged(self, veto: VetoState) -> Stored:
        """The same with what the exactness probe says about it, which outranks it."""
        if not (veto.vetoed and self.in_force):
            return dataclasses.replace(self, exactness=veto)
        reason = f"the exactness probe declined: {veto.reason}; otherwise {self.reason}"
        return dataclasses.replace(self, exactness=veto, state="vetoed", reason=reason)


def read_stored(
    name: str,
    text: str,
    *,
    now: float,
    versions: Mapping[str, str],
    host: str | None = None,
    round_loop: int = ROUND_LOOP_VERSION,
) -> Stored:
    """Read one file of verdicts.

    Parameters
    ----------
    name, text : str
        Name and content of the file.
    now : float
        Seconds since 1970.
    versions : mapping of str to str
        Installed versions of ``mlx`` and ``mlxcel``: a verdict of others is outdated.
    host : str, optional
        Fingerprint of this host; without it all verdicts count as its own.
    round_loop : int
        Current version of the round loop.

    Returns
    -------
    Stored
        Never an error: what cannot be read is ``corrupt``, with the reason.
    """
    if not text.strip():
        return Stored(name=name, state="corrupt", reason="the file is empty: delete it")
    try:
        data = parse_json(text, "verdict")
        if old := _other_version(data):
            return Stored(name=name, state="outdated", reason=old)
        key = _key(data)
        verdict = Verdict.from_json(text, key)
        names = PairingNames.from_fields(Fields(data, "verdict").inner("names"))
    except (LoadError, ConfigError) as error:
        return Stored(name=name, state="corrupt", reason=error.message)
    age = now - verdict.settled_at
    found = Stored(
        name=name, state=_state(verdict), reason=verdict.describe(), names=names, key=key,
        verdict=verdict, age_seconds=age, due_at=verdict.settled_at + verdict.max_age,
    )  # fmt: skip
    if why := _outdated(key, age, verdict.max_age, {**versions, "round_loop": round_loop}):
        return dataclasses.replace(found, state="outdated", reason=why, due_at=None)
    if host not in (None, key.host):
        why = f"of another host, or of other libraries or variables there; {found.reason}"
        return dataclasses.replace(found, state="elsewhere", reason=why)
    return found


def _other_version(data: object) -> str:
    version = data.get("version") if isinstance(data, Mapping) else None
    if not isinstance(version, int) or version == VERDICT_VERSION:
        return ""
    return (
        "measured again at the next use: the form of the file has version "
        f"{version}, now {VERDICT_VERSION}"
    )


def _key(data: object) -> VerdictKey:
    """The key of a record; `Verdict.from_json` checks all the rest against it."""
    value = data.get("key") if isinstance(data, Mapping) else None
    names = {spec.name for spec in dataclasses.fields(VerdictKey)}
    if not isinstance(value, Mapping) or value.keys() != names:
        raise LoadError("the file holds no verdict with its whole key: delete it", param="key")
    fields: dict[str, Any] = dict(value)
    return VerdictKey(**fields)


def _state(verdict: Verdict) -> StoredState:
    if verdict.zone in ("enable", "decline"):
        return "runs" if verdict.zone == "enable" else "declined"
    return "left to the gate"


def _outdated(key: VerdictKey, age: float, limit: float, current: Mapping[str, str | int]) -> str:
    """Why the policy would not take a verdict over; empty where it would."""
    changed = [
        f"{name.replace('_', ' ')} {getattr(key, name)}, now {value}"
        for name, value in current.items()
        if getattr(key, name) != value
    ]
    if changed:
        return f"measured again at the next use: {'; '.join(changed)}"
    if age > limit:
        return f"measured again at the next use: {age / 86400:.1f} days old"
    if age < -CLOCK_SLACK:
        return f"measured again at the next use: settled {-age / 86400:.1f} days in the future"
    return ""
