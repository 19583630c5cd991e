"""The static gate: whether a burst of one row runs before anything was measured here.

Pure. It is asked by ``Scheduler.mtp_b1_should_run`` where no adaptive policy is attached,
and by the policy to resolve what its own measurement leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxcel.config import parse_bool

__all__ = ["OVERRIDE", "GateDecision", "GateSource", "mtp_b1_decision", "mtp_b1_default"]

GateSource = Literal["override", "not-batchable", "host", "unmeasured"]

OVERRIDE = "MLXCEL_ENABLE_MTP_B1"
"""Variable that overrides the gate in both directions."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether the burst runs, which rule said so, and why, for people.

    Attributes
    ----------
    run : bool
        Whether the burst runs.
    source : {"override", "not-batchable", "host", "unmeasured"}
        The rule that decided.
    reason : str
        One sentence without a full stop.
    """

    run: bool
    source: GateSource
    reason: str


def mtp_b1_default(
    env_value: str | None, target_supports_batching: bool, wide_quantized_projections: bool
) -> bool:
    """Whether the B=1 burst runs by default on this host.

    Parameters
    ----------
    env_value : str or None
        Value of ``MLXCEL_ENABLE_MTP_B1``, ``None`` when it is not set.
    target_supports_batching : bool
        Whether the target can decode several sequences together.
    wide_quantized_projections : bool
        Whether a quantized projection of a few rows costs about as much as one row: on
        Apple hosts by GPU generation (15 and later, `mlxcel.decide.chips`), elsewhere by
        the kernel profile.

    Returns
    -------
    bool
        The override where it is set; else true for a target that cannot batch, whose
        alternative is one classic row anyway; else whether the host is wide.

    Raises
    ------
    ConfigError
        ``env_value`` is no boolean, the empty text included; the message names both.

    Notes
    -----
    Evidence, all of Gemma 4 31B 4-bit + bf16 assistant, the pairing that the gate governs
    (a batch-capable target at B=1):

    ============================== ======== ======================= ======================
    id in ``mlxcel/evidence``      host     speed-up                how
    ============================== ======== ======================= ======================
    m3ultra-31b-2026-08-20         M3 Ultra 2.65, 2.41, 1.95        width 4, guarded
                                                                    protocol, round cost
                                                                    1.51 to 1.52 steps,
                                                                    fast kernel
    m1ultra-31b-2026-09-04         M1 Ultra 0.93, 0.75, 0.75        widths 2, 4, 8, one run
    m1ultra-31b-2026-06            M1 Ultra 0.86, 0.96, 0.75, 0.91  four prompts, older
                                                                    round loop
    m5max-31b-2026-09-06           M5 Max   1.63, 1.90, 1.78        widths 2, 4, 8, one run
    m5max-31b-exact-2026-09-26     M5 Max   1.38, 1.31, 1.18        exact path, heat drifts
    m5max-31b-qat-exact-2026-09-26 M5 Max   1.14, 0.85, 1.21        the same, QAT target
    ============================== ======== ======================= ======================

    M2 (narrow) and M4 (wide) are inferred from the GPU generation; nobody has measured
    this pairing there.

    The same default resolves the ambiguous zone of the adaptive policy (a measured
    speed-up between 1.0 and 1.5, `mlxcel.decide.policy`), so it has to be right even
    where the policy is on.
    """
    return mtp_b1_decision(env_value, target_supports_batching, wide_quantized_projections).run


def mtp_b1_decision(
    env_value: str | None,
    target_supports_batching: bool,
    wide_quantized_projections: bool | None,
    *,
    host: str = "this host",
) -> GateDecision:
    """Decide as `mtp_b1_default`, with the rule and the reason.

    Parameters
    ----------
    env_value, target_supports_batching
        See `mtp_b1_default`.
    wide_quantized_projections : bool or None
        ``None`` where neither table nor kernel profile has an answer yet. The decision is
        then a decline that says so and has its own source, never a silent one.
    host : str
        Name of the host and what is known of it, for the reason.

    Raises
    ------
    ConfigError
        See `mtp_b1_default`.
    """
    if env_value is not None:
        run = parse_bool(OVERRIDE, env_value)
        return GateDecision(
            run, "override", f"{OVERRIDE}={env_value.strip()} turns it {'on' if run else 'off'}"
        )
    if not target_supports_batching:
        return GateDecision(
            True, "not-batchable", "the target cannot batch: one classic row is the alternative"
        )
    if wide_quantized_projections is None:
        return GateDecision(
            False,
            "unmeasured",
            f"{host} is not measured yet: run `mlxcel probe kernels`, or set {OVERRIDE}",
        )
    if wide_quantized_projections:
        return GateDecision(
            True, "host", f"{host} has wide quantized projections: a block costs little more"
        )
    return GateDecision(
        False, "host", f"{host} has narrow quantized projections: a block is paid row by row"
    )
