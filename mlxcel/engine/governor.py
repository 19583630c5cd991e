"""Who decides about bursts of one row: exactness, the policy and the gate, joined.

How wide the rounds of a burst are is another question, see `mlxcel.engine.steering`.

Everything is found out when it is first needed: an engine that is only asked for classic
decode times no kernel and probes nothing.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlxcel.config import Settings
from mlxcel.decide.chips import Chip
from mlxcel.decide.estimate import BurstSample
from mlxcel.decide.gate import GateDecision, mtp_b1_decision
from mlxcel.decide.policy import MtpPolicy, PolicyState
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.rows import RowRule, rule_of, widest
from mlxcel.decide.verdict import PairingNames, VerdictKey
from mlxcel.engine.drafters import Drafter
from mlxcel.engine.exactness import ProbeInterrupted
from mlxcel.engine.host_chip import this_chip
from mlxcel.engine.load_steering import LoadSteering
from mlxcel.engine.served_form import kernel_verdict, padding_of, served_verdict
from mlxcel.engine.standing import static_standing, with_evidence
from mlxcel.engine.steering import Steering
from mlxcel.engine.steerings import Steerings
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.engine.vetoes import Interrupted, Known, Probe, Vetoes, probes_of
from mlxcel.hardware.host import Host, describe
from mlxcel.hardware.profile_store import digest, host_facts
from mlxcel.models.lean import LEAN_VERSION
from mlxcel.runtime.loader import LoadedModel

__all__ = ["Facts", "Governor", "Ruling", "facts_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a burst runs, whose word that is, and why.

    Attributes
    ----------
    run : bool
        Whether it runs.
    source : {"exactness", "override", "policy", "gate"}
        Who decided.
    reason : str
        For people.
    """

    run: bool
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a pairing's host and weights are, once they are known.

    Attributes
    ----------
    static : GateDecision
        The static gate's answer.
    key : callable
        Verdict key of a width.
    names : PairingNames
        For people.
    """

    static: GateDecision
    key: Callable[[int], VerdictKey]
    names: PairingNames = field(default_factory=PairingNames)


class Governor:
    """Decides about bursts of one pairing.

    Parameters
    ----------
    facts : callable
        Finds out what the host is; called once, when first needed.
    probe : callable
        Exactness at a width: probed, or remembered; see `Vetoes`.
    store : VerdictStore
        Where verdicts are kept.
    settings : Settings
        Whether policy and width controller are on.
    known : callable, optional
        Exactness at a width where it is remembered, else ``None``; see `Vetoes`.
    sequential, serial : bool
        Of the drafter and its rounds, see `Steering`.
    clock : callable
        Seconds since 1970: verdicts outlive the process.

    Not thread-safe: belongs to the engine's thread.
    """

    def __init__(
        self,
        facts: Callable[[], Facts],
        probe: Probe,
        store: VerdictStore,
        settings: Settings,
        *,
        known: Known = lambda width: None,
        sequential: bool = True,
        serial: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._facts = functools.cache(facts)
        self._vetoes = Vetoes(probe, known)
        self._store = store
        self._settings = settings
        self._adaptive = settings.mtp_adaptive
        self._steerings = Steerings(
            lambda: self._facts().key(widest(settings)), store, self._vetoes,
            sequential=sequential, serial=serial,
        )  # fmt: skip
        self._clock = clock
        self._policies: dict[int, MtpPolicy] = {}
        self._by_gate: set[int] = set()  # widths that the gate alone was asked about

    def should_run(self, width: int) -> Ruling:
        """Whether a burst of one row runs at a width: veto, override, verdict, gate."""
        ruling = self._preference(width)
        if not ruling.run:
            return ruling
        # Asked last because it costs most, but what it says outranks all others.
        veto = self.veto(width)
        if veto:
            return Ruling(False, "exactness", f"the exactness probe declined: {veto}")
        return ruling

    def veto(self, width: int) -> str:
        """Why exactness forbids bursts of a width; empty if it does not. Probes if need be."""
        reason = self._vetoes.of(width).reason
        if self._adaptive:
            self.policy(width).veto = reason
        self._steerings.judged(width, reason)
        return reason

    def steering(self, width: int, source: str) -> Steering | None:
        """What chooses the widths inside a burst that was decided on.

        Parameters
        ----------
        width : int
            The pairing's width, found exact.
        source : str
            Who let the burst run; see `Ruling`.

        Returns
        -------
        Steering or None
            ``None`` where the given width runs: by the settings, or because the policy
            measures it.
        """
        if self._settings.mtp_block_controller != "throughput":
            return None
        if source == "policy" and self.policy(width).state is PolicyState.PROFILING:
            return None
        return self._steerings.for_burst(width)

    def load(self) -> LoadSteering | None:
        """What chooses the widths of rounds of several rows; ``None`` if they are as requested."""
        chooses = self._settings.mtp_block_controller == "throughput"
        return self._steerings.for_crowd(self._settings.default_width) if chooses else None

    @property
    def crowd(self) -> LoadSteering | None:
        """The same, if a request has needed it."""
        return self._steerings.crowd

    def rest(self, interrupted: Interrupted) -> bool:
        """Use a time without requests: find out whether one more width is exact.

        Parameters
        ----------
        interrupted : callable
            Whether there is other work by now; the probe then ends without a result.

        Returns
        -------
        bool
            Whether there is more to find out.
        """
        width = self._steerings.wanted()
        if width is None:
            return False
        try:
            self._steerings.judged(width, self._vetoes.at_rest(width, interrupted).reason)
        except ProbeInterrupted:
            return True
        return self._steerings.wanted() is not None

    def _preference(self, width: int) -> Ruling:
        static = self._facts().static
        if not self._adaptive:
            self._by_gate.add(width)
            return Ruling(static.run, _source(static), static.reason)
        found = self.policy(width).decide(self._clock())
        source = {
            PolicyState.EXACTNESS_DECLINED: "exactness",
            PolicyState.FORCED: "override",
        }.get(found.state, "policy")
        return Ruling(found.run, source, found.reason)

    def policy(self, width: int) -> MtpPolicy:
        """The policy of a width, with its verdict of earlier processes."""
        if width not in self._policies:
            facts = self._facts()
            policy = MtpPolicy(facts.key(width), facts.static, facts.names)
            self._store.restore(policy.key, lambda text: policy.restore(text, self._clock()))
            self._policies[width] = policy
        return self._policies[width]

    def probe_rounds(self, width: int, budget: int) -> int:
        """Classic rounds at the start of the next burst; see `MtpPolicy.probe_rounds`."""
        return self.policy(width).probe_rounds(budget) if self._adaptive else 0

    def observe(self, width: int, sample: BurstSample) -> None:
        """Take in what a request that ran alone measured; store a verdict that came of it."""
        if not self._adaptive:
            return
        policy = self.policy(width)
        if policy.observe(sample, self._clock()):
            log.info("mtp policy, width %d: %s", width, policy.decide(self._clock()).reason)
            # What could not be measured is no verdict worth keeping over a restart.
            open_ = policy.verdict is not None and policy.verdict.zone == "unmeasured"
            self._store.write(policy.key, None if open_ else policy.to_json())

    def save(self) -> None:
        """Keep what has been learnt of widths."""
        self._steerings.save()

    def snapshot(self) -> list[dict[str, Any]]:
        """State of every width that has been asked about; see `MtpPolicy.snapshot`.

        Each has what the static gate says under ``gate``, what the probe found under ``exactness``
        and the width controller's state under ``controller``; ``None`` while those are not known.
        """
        now, vetoes = self._clock(), self._vetoes
        burst = self._steerings.burst
        steering = None if burst is None else burst.snapshot()
        found = [self._policies[width].snapshot(now) for width in sorted(self._policies)]
        if not found:
            known = [(width, vetoes.found(width)) for width in sorted(self._by_gate)]
            found = [static_standing(width, self._facts(), each) for width, each in known]
        if not found and steering is not None:
            found = [{"state": "static", "run": True, "width": self._settings.default_width}]
        return [with_evidence(each, self._facts().static, vetoes, steering) for each in found]

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        drafter: Drafter,
        settings: Settings,
        rule: Callable[[], RowRule],
        *,
        drafter_name: str | None = None,
    ) -> Governor:
        """The governor of a pairing on this host; ``rule`` as for the engine."""
        probe, known = probes_of(model, settings, rule)
        return cls(
            lambda: facts_of(model, drafter.fingerprint, settings, drafter_name=drafter_name),
            probe,
            VerdictStore(settings.cache_dir),
            settings,
            known=known,
            sequential=drafter.sequential,
            serial=drafter.on_host,
        )


def _source(static: GateDecision) -> str:
    return "override" if static.source == "override" else "gate"


def facts_of(
    model: LoadedModel,
    drafter_id: str,
    settings: Settings,
    *,
    drafter_name: str | None = None,
    host: Host | None = None,
    chip: Chip | None = None,
) -> Facts:
    """What the gate and the verdicts of a pairing rest on; times kernels where need be.

    Parameters
    ----------
    model : LoadedModel
        The target as it is served.
    drafter_id : str
        Fingerprint of the drafter.
    settings : Settings
        Override and cache folder.
    drafter_name : str, optional
        What people call it.
    host, chip : Host, Chip, optional
        This host's by default.
    """
    host, chip = host or describe(), chip or this_chip()
    override = settings.enable_mtp_b1
    verdict = kernel_verdict(model, settings, host)
    form = served_verdict(model, verdict)
    rule = rule_of(settings, padding_of(model, form))
    wide = form.wide if chip.must_measure else chip.wide
    name = f"{chip.name} ({form.describe()})" if chip.must_measure else chip.name
    if rule.invariant:  # a classic step is then as dear as a verify
        wide, name = True, f"{chip.name} (with classic steps of {rule.block} rows too)"
    static = mtp_b1_decision(
        None if override is None else ("on" if override else "off"),
        model.target.layout.windows is not None,
        wide,
        host=name,
    )

    def key(width: int) -> VerdictKey:
        return VerdictKey(
            target=model.checkpoint.fingerprint,
            drafter=drafter_id,
            host=digest(host_facts(host)),
            width=width,
            weights=f"{model.representation.form} {model.representation.dtype}"
            + (f" lean {LEAN_VERSION}" if settings.lean_modules else ""),
            kernel=", ".join(filter(None, (form.kernel, rule.key(width)))),
            mlx=str(host.versions.get("mlx") or "none"),
            mlxcel=str(host.versions.get("mlxcel") or "none"),
            round_loop=ROUND_LOOP_VERSION,
            numerics=rule.numerics,
        )

    names = PairingNames(
        target=model.checkpoint.name, drafter=drafter_name, host=f"{host.chip} ({host.backend})"
    )
    return Facts(static, key, names)
