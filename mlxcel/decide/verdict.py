"""Settled verdicts of the adaptive policy: what they are valid for, and their JSON form.

A verdict is kept per key, and the key holds everything that changes the outcome. Reading is
strict: whatever is not exactly such a record of exactly this key is refused with a reason,
and the caller goes on as if there were none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from mlxcel.decide._fields import Fields
from mlxcel.decide.estimate import Estimate
from mlxcel.errors import ConfigError, LoadError

__all__ = [
    "SPEEDUP_CEILING",
    "SPEEDUP_FLOOR",
    "UNMEASURED_MAX_AGE",
    "VERDICT_MAX_AGE",
    "VERDICT_VERSION",
    "PairingNames",
    "Verdict",
    "VerdictKey",
    "Zone",
    "parse_json",
    "zone_of",
]

VERDICT_VERSION = 2
"""Of the JSON form and of the estimator behind it: another version is not read."""

SPEEDUP_FLOOR = 1.5
"""Estimated speed-up from which (inclusive) the burst is enabled."""

SPEEDUP_CEILING = 1.0
"""Estimated speed-up up to which (inclusive) the burst is declined."""

VERDICT_MAX_AGE = 7 * 86400.0
"""Age in seconds after which a verdict is measured again: profiling costs eight classic
steps and, on a host that loses, four slow answers, which once a week nobody notices."""

UNMEASURED_MAX_AGE = 3600.0
"""The same where nothing could be measured: that says something about the answers of that
hour, such as being too short to speculate, and nothing about the host. Profiling again after
an hour costs at most the bursts after which it gives up."""

Zone = Literal["enable", "decline", "ambiguous", "unmeasured"]
_ZONES: tuple[Zone, ...] = ("enable", "decline", "ambiguous", "unmeasured")
_TEXTS = ("target", "drafter", "host", "weights", "kernel", "mlx", "mlxcel", "numerics")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictKey:
    """Everything that changes whether a burst pays.

    Attributes
    ----------
    target, drafter : str
        Fingerprints of the checkpoints' content, not their names.
    host : str
        Fingerprint of backend, chip, cores and what else sets its speed.
    width : int
        Block width, tokens.
    weights : str
        Representation that is served, such as ``"stored"`` or ``"dense"``.
    kernel : str
        Form of the projection kernel, such as ``"wide"`` or ``"narrow"``, and row padding.
    mlx, mlxcel : str
        Versions.
    round_loop : int
        Version of the round loop.
    numerics : str
        ``"fast"`` or ``"invariant"``.

    Raises
    ------
    ConfigError
        An empty text, or a width or version below 1.
    """

    target: str
    drafter: str
    host: str
    width: int
    weights: str
    kernel: str
    mlx: str
    mlxcel: str
    round_loop: int
    numerics: str

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(
                    f"verdict key: {name} must be a text, got {value!r}; name what is served",
                    param=name,
                )
        for name in ("width", "round_loop"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"verdict key: {name} must be a whole number from 1, got {value!r}", param=name
                )

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that are the same for the same key in every process."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]

    def differences(self, other: VerdictKey) -> str:
        """The fields in which another key differs, for people; empty when it is the same."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(
            f"{name} {theirs[name]!r} instead of {mine[name]!r}"
            for name in mine
            if mine[name] != theirs[name]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingNames:
    """What people call a pairing and its host; no part of the key.

    Attributes
    ----------
    target, drafter, host : str or None
        ``None`` where nobody said.
    """

    target: str | None = None
    drafter: str | None = None
    host: str | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> PairingNames:
        """Read them from a record.

        Raises
        ------
        LoadError
            One is missing, or no text.
        """
        found = cls(**{name: fields.text_or_none(name) for name in ("target", "drafter", "host")})
        fields.close()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a profiling window came to.

    Attributes
    ----------
    zone : {"enable", "decline", "ambiguous", "unmeasured"}
        Where the estimate lies; the static default decides the last two.
    estimate : Estimate or None
        The figures; ``None`` exactly where nothing could be measured.
    settled_at : float
        When, in seconds of the caller's clock (since 1970 where it is kept in a file).
    """

    zone: Zone
    estimate: Estimate | None
    settled_at: float

    @property
    def max_age(self) -> float:
        """Seconds after ``settled_at`` until it is measured again."""
        return UNMEASURED_MAX_AGE if self.zone == "unmeasured" else VERDICT_MAX_AGE

    def run(self, static: bool) -> bool:
        """Whether the burst runs; ``static`` is the gate's answer for what is left open."""
        if self.zone in ("enable", "decline"):
            return self.zone == "enable"
        return static

    def describe(self) -> str:
        """The figures and what they mean, for people, without the static default."""
        if self.estimate is None:
            return "the speed-up could not be measured"
        found = self.estimate
        figures = (
            f"measured {found.speedup:.2f}x over {found.samples} bursts "
            f"({found.emitted_per_verify:.2f} emitted per verify, classic step "
            f"{found.classic_seconds * 1e3:.1f} ms, round {found.round_seconds * 1e3:.1f} ms)"
        )
        if self.zone == "enable":
            return f"{figures}: at least {SPEEDUP_FLOOR} enables"
        if self.zone == "decline":
            return f"{figures}: at most {SPEEDUP_CEILING} declines"
        return f"{figures}: between {SPEEDUP_CEILING} and {SPEEDUP_FLOOR} is left to the gate"

    def to_json(self, key: VerdictKey, names: PairingNames | None = None) -> str:
        """JSON text of the verdict with its key, and with names for people."""
        record = {
            "version": VERDICT_VERSION,
            "key": asdict(key),
            "names": asdict(names or PairingNames()),
            "verdict": asdict(self),
        }
        return json.dumps(record, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, key: VerdictKey) -> Verdict:
        """Read a verdict that was settled for exactly this key.

        Raises
        ------
        LoadError
            Not JSON, another version, another key, or a field that is missing, unknown or
            out of bounds. The caller treats it as absent and profiles.
        """
        fields = Fields(parse_json(text, "verdict"), "verdict")
        version = fields.whole("version", 0, 10**6)
        if version != VERDICT_VERSION:
            raise LoadError(
                f"verdict: version {version} is not {VERDICT_VERSION}: profile again",
                param="version",
            )
        differs = key.differences(_read_key(fields.inner("key")))
        if differs:
            raise LoadError(f"verdict: settled for another pairing: {differs}", param="key")
        PairingNames.from_fields(fields.inner("names"))
        inner = fields.inner("verdict")
        zone = inner.word("zone", _ZONES)
        settled_at = float(inner.number("settled_at", 0, 1e12))
        found = _read_estimate(inner)
        inner.close()
        fields.close()
        if (found is None) != (zone == "unmeasured") or (found and zone != zone_of(found)):
            raise LoadError(f"verdict: zone {zone!r} contradicts its figures", param="zone")
        return cls(zone=zone, estimate=found, settled_at=settled_at)


def zone_of(found: Estimate) -> Zone:
    """The zone of an estimate: both limits are inclusive."""
    if found.speedup >= SPEEDUP_FLOOR:
        return "enable"
    return "decline" if found.speedup <= SPEEDUP_CEILING else "ambiguous"


def parse_json(text: str, what: str) -> object:
    """Parse a JSON text.

    Raises
    ------
    LoadError
        It is none; the message says where it breaks.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{what}: not valid JSON ({error}): delete it") from error


def _read_key(fields: Fields) -> VerdictKey:
    texts = {name: fields.text(name) for name in _TEXTS}
    width, loop = fields.whole("width", 1, 1024), fields.whole("round_loop", 1, 10**6)
    fields.close()
    return VerdictKey(width=width, round_loop=loop, **texts)


def _read_estimate(outer: Fields) -> Estimate | None:
    value = outer.take("estimate")
    if value is None:
        return None
    fields = Fields(value, f"{outer.where}: estimate")
    found = Estimate(
        emitted_per_verify=float(fields.number("emitted_per_verify", 1, 1024)),
        classic_seconds=float(fields.number("classic_seconds", 1e-9, 1e5)),
        round_seconds=float(fields.number("round_seconds", 1e-9, 1e5)),
        samples=fields.whole("samples", 1, 10**9),
        rounds=fields.whole("rounds", 1, 10**9),
    )
    fields.close()
    return found
