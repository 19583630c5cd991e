"""The adaptive policy: whether bursts of a pairing pay on this host, by measuring them.

Pure: times come in as numbers, files are the caller's. One object per verdict key and
process. The order of authority is exactness veto, operator override, measured verdict,
static gate. A policy that was forced says so and never passes for a measured one.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.decide.drift import DRIFT_BURSTS, DriftWatch
from mlxcel.decide.estimate import (
    MIN_PROBE_MEANS,
    MIN_ROUNDS,
    SAMPLE_TARGET,
    BurstSample,
    estimate,
)
from mlxcel.decide.gate import GateDecision
from mlxcel.decide.verdict import PairingNames, Verdict, VerdictKey, zone_of
from mlxcel.errors import LoadError

__all__ = [
    "GIVE_UP_BURSTS",
    "MAX_PROBE_MEANS",
    "MAX_SAMPLES",
    "PROBE_ROUNDS",
    "MtpPolicy",
    "PolicyDecision",
    "PolicyState",
]

PROBE_ROUNDS = 2
"""Rounds without drafter at the start of each profiled burst, at least."""

MOST_PROBE_ROUNDS = 8
"""The same where the burst is long: two steps a burst on a shared machine differed from the mean
over an answer by 10 to 17 %."""

PROBE_SHARE = 1 / 8
"""Part of a burst's tokens that they may take beyond the least."""

MAX_PROBE_MEANS = 8
"""Classic steps kept while profiling, one mean a burst; the oldest goes."""

MAX_SAMPLES = 32
"""Bursts kept while profiling; with one round each they still reach `MIN_ROUNDS`."""

GIVE_UP_BURSTS = 64
"""Bursts after which profiling ends without an estimate and the static gate decides."""

MAX_PATIENCE = 8 * DRIFT_BURSTS
"""Longest wait, in bursts, before drift counts after profiling kept confirming a verdict."""

CLOCK_SLACK = 86400.0
"""Seconds by which a stored verdict may seem to come from the future."""


class PolicyState(enum.StrEnum):
    """What a policy rests on at the moment."""

    FORCED = "forced"
    PROFILING = "profiling"
    SETTLED = "settled"
    EXACTNESS_DECLINED = "exactness_declined"


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Whether the next burst runs, what that rests on, and why, for people."""

    run: bool
    state: PolicyState
    reason: str


class MtpPolicy:
    """Measures a pairing and decides; see the module for who outranks whom.

    Parameters
    ----------
    key : VerdictKey
        What is measured.
    static : GateDecision
        The static gate's answer. One by override forces the policy: it never profiles and
        never has anything to store. Any other resolves what measuring leaves open.
    names : PairingNames, optional
        For people.

    Attributes
    ----------
    veto : str
        What the exactness probe found, or that it has not run; empty while the pairing is
        exact. Set it; it outranks everything and keeps what has been measured.
    forced : bool or None
        What the override says, ``None`` without one.
    verdict : Verdict or None
        The settled verdict.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(
        self, key: VerdictKey, static: GateDecision, names: PairingNames | None = None
    ) -> None:
        self.key = key
        self.names = names or PairingNames()
        self.static = static
        self.forced = static.run if static.source == "override" else None
        self.veto = ""
        self.verdict: Verdict | None = None
        self._cause = "there is no verdict yet"
        self._before: bool | None = None  # what the last verdict said
        self._patience = DRIFT_BURSTS
        self._begin()

    def _begin(self) -> None:
        self._samples: deque[BurstSample] = deque(maxlen=MAX_SAMPLES)
        self._probe_means: deque[float] = deque(maxlen=MAX_PROBE_MEANS)
        self._bursts = 0
        self._watch: DriftWatch | None = None

    # -- answers ----------------------------------------------------------------------

    @property
    def state(self) -> PolicyState:
        """What the policy rests on."""
        if self.veto:
            return PolicyState.EXACTNESS_DECLINED
        if self.forced is not None:
            return PolicyState.FORCED
        return PolicyState.PROFILING if self.verdict is None else PolicyState.SETTLED

    def decide(self, now: float) -> PolicyDecision:
        """Decide about the next burst.

        Parameters
        ----------
        now : float
            Seconds of the clock that `observe` gets; an old verdict ends here.
        """
        self._expire(now)
        state = self.state
        if state is PolicyState.EXACTNESS_DECLINED:
            return PolicyDecision(False, state, f"the exactness probe declined: {self.veto}")
        if self.forced is not None:
            return PolicyDecision(self.forced, state, f"{self.static.reason}; nothing was measured")
        if self.verdict is None:
            count = f"{min(len(self._samples), SAMPLE_TARGET)} of {SAMPLE_TARGET} bursts"
            return PolicyDecision(True, state, f"profiling, {count} measured: {self._cause}")
        reason = self.verdict.describe()
        if self.verdict.zone in ("ambiguous", "unmeasured"):
            reason = f"{reason}; the static gate decides: {self.static.reason}"
        return PolicyDecision(self.verdict.run(self.static.run), state, reason)

    def probe_rounds(self, budget: int) -> int:
        """Rounds without drafter at the start of the next burst.

        Parameters
        ----------
        budget : int
            Tokens that the burst may still emit, without the first one from the prompt.

        Returns
        -------
        int
            0 unless profiling. A burst too short for probe rounds and a full block does
            one or the other in turn, so that short outputs settle too.
        """
        if self.state is not PolicyState.PROFILING:
            return 0
        if budget >= PROBE_ROUNDS + self.key.width:
            return max(PROBE_ROUNDS, min(MOST_PROBE_ROUNDS, int(budget * PROBE_SHARE)))
        known, turn = len(self._probe_means), len(self._samples)
        return min(PROBE_ROUNDS, max(budget, 0)) if known < SAMPLE_TARGET and known <= turn else 0

    def snapshot(self, now: float) -> dict[str, Any]:
        """Names, state, reason, figures, key and when it is measured again; JSON values."""
        decision = self.decide(now)
        profiling = decision.state is PolicyState.PROFILING
        verdict = self.verdict
        found = verdict.estimate if verdict is not None else None
        return {
            **asdict(self.names),
            "state": str(decision.state),
            "run": decision.run,
            "reason": decision.reason,
            "width": self.key.width,
            "key": self.key.digest,
            "samples": found.samples if found else len(self._samples),
            "samples_required": SAMPLE_TARGET,
            "samples_remaining": max(SAMPLE_TARGET - len(self._samples), 0) if profiling else 0,
            "zone": verdict.zone if verdict else None,
            "speedup": found.speedup if found else None,
            "emitted_per_verify": found.emitted_per_verify if found else None,
            "round_cost": found.round_cost if found else None,
            "settled_at": verdict.settled_at if verdict else None,
            "due_at": verdict.settled_at + verdict.max_age if verdict else None,
            "veto": self.veto or None,
        }

    # -- measurements -----------------------------------------------------------------

    def observe(self, sample: BurstSample, now: float) -> bool:
        """Take in what a burst measured, a declined (classic) one included.

        Parameters
        ----------
        sample : BurstSample
            Its figures. A request that ran classic passes its rounds as probe rounds.
            While profiling, rounds wider than the key's width do not count.
        now : float
            Seconds.

        Returns
        -------
        bool
            Whether a verdict was reached or dropped: store what `to_json` gives, or
            delete what is stored where it gives ``None``.
        """
        if self.state not in (PolicyState.PROFILING, PolicyState.SETTLED):
            return False
        if self._watch is not None:
            return self._watched(sample, self._watch)
        self._bursts += 1
        mean = sample.probe_mean
        if mean is not None:
            self._probe_means.append(mean)
        if sample.qualifies and 2 <= sample.width <= self.key.width:
            self._samples.append(sample)
        return self._settle(now)

    def _settle(self, now: float) -> bool:
        enough = (
            len(self._samples) >= SAMPLE_TARGET
            and sum(sample.rounds for sample in self._samples) >= MIN_ROUNDS
            and len(self._probe_means) >= MIN_PROBE_MEANS
        )
        found = estimate(self._samples, self._probe_means) if enough else None
        if found is None and self._bursts < GIVE_UP_BURSTS:
            return False
        zone = "unmeasured" if found is None else zone_of(found)
        self.verdict = Verdict(zone=zone, estimate=found, settled_at=now)
        run = self.verdict.run(self.static.run)
        confirmed = self._before is not None and run == self._before
        self._patience = min(2 * self._patience, MAX_PATIENCE) if confirmed else DRIFT_BURSTS
        self._before = run
        self._begin_watch()
        return True

    def _begin_watch(self) -> None:
        self._begin()
        references = {}
        found = self.verdict.estimate if self.verdict else None
        if found is not None:
            references[1] = (1.0, found.classic_seconds)
            references[self.key.width] = (found.emitted_per_verify, found.round_seconds)
        self._watch = DriftWatch(references, patience=self._patience)

    def _watched(self, sample: BurstSample, watch: DriftWatch) -> bool:
        """Look for drift; what has drifted is measured again."""
        drift = watch.observe(sample.width, sample.rounds, sample.emitted, sample.seconds)
        drift = drift or watch.observe(
            1, sample.probe_rounds, sample.probe_rounds, sample.probe_seconds
        )
        if not drift:
            return False
        self._drop(f"measured again because {drift}")
        return True

    def _expire(self, now: float) -> None:
        if self.verdict is None:
            return
        limit = self.verdict.max_age
        if now - self.verdict.settled_at > limit:
            self._drop(f"measured again because the verdict is over {limit:.0f} s old")

    def _drop(self, cause: str) -> None:
        self.verdict, self._cause = None, cause
        self._begin()

    # -- storing ----------------------------------------------------------------------

    def to_json(self) -> str | None:
        """JSON text of the verdict, ``None`` where there is none to store."""
        if self.verdict is None or self.forced is not None:
            return None
        return self.verdict.to_json(self.key, self.names)

    def restore(self, text: str, now: float) -> None:
        """Take over a stored verdict.

        Raises
        ------
        LoadError
            It cannot be used: corrupt, another version, another key, too old, or from the
            future. Nothing has changed; log it and go on profiling.
        """
        verdict = Verdict.from_json(text, self.key)
        age = now - verdict.settled_at
        if age > verdict.max_age:
            raise LoadError(f"verdict: {age:.0f} s old, over {verdict.max_age:.0f} s")
        if age < -CLOCK_SLACK:
            raise LoadError(f"verdict: settled {-age:.0f} s in the future; check the clock")
        if self.forced is None:
            self.verdict, self._before = verdict, verdict.run(self.static.run)
            self._begin_watch()
