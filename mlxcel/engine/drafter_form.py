"""How a drafter's projections are held: quantized at load, where that is faster."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from mlxcel.config import Settings
from mlxcel.engine.served_form import kernel_verdict
from mlxcel.errors import MlxcelError
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.representation import detect_backend, quantize_projections

__all__ = ["DEFAULT_BITS", "DrafterForm", "quantize_drafter"]

log = logging.getLogger(__name__)

DEFAULT_BITS = 4
"""A drafter reads its weights once per draft, so that a draft costs what they weigh; worse drafts
cost acceptance only. Qwen's head: 810 to 228 MiB, a round's drafts 10.5 to 2.7 ms, acceptance
0.683 to 0.660 (M5 Max, published)."""

# They choose clusters or experts: small, and a wrong choice costs more than a coarse product.
_CHOOSING = ("centroids", "gate", "shared_expert_gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterForm:
    """What has been done with a drafter's projections.

    Attributes
    ----------
    bits : int
        0 where they are as they were.
    projections : int
        How many were quantized.
    before, after : int
        Their bytes.
    reason : str
        Why.
    """

    bits: int
    projections: int
    before: int
    after: int
    reason: str

    @property
    def key(self) -> str:
        """Word for fingerprints: another form proposes other tokens."""
        return f"{self.bits}-bit" if self.bits else "dense"

    @property
    def summary(self) -> str:
        """One phrase, for people."""
        if not self.bits:
            return f"as in the checkpoint: {self.reason}"
        mib = f"{self.before / 2**20:.1f} to {self.after / 2**20:.1f} MiB"
        return f"{self.projections} projections at {self.bits} bits, {mib}: {self.reason}"


def quantize_drafter(drafter: nn.Module, model: LoadedModel, settings: Settings) -> DrafterForm:
    """Quantize a drafter's projections as the settings say; norms and embeddings stay.

    Parameters
    ----------
    drafter : nn.Module
        Changed in place, and evaluated; one that is quantized already stays.
    model : LoadedModel
        Its target, whose kernel profile ``auto`` goes by.
    settings : Settings
        ``drafter_bits``, and what the profile needs.
    """
    bits, reason = _choose(model, settings)
    done = quantize_projections(drafter, bits, keep=_CHOOSING) if bits else None
    if done is not None and not done.projections:
        done, reason = None, "the checkpoint is quantized, or has no projection that could be"
    if done is None:
        form = DrafterForm(bits=0, projections=0, before=0, after=0, reason=reason)
    else:
        mx.eval(drafter.parameters())
        form = DrafterForm(bits=bits, reason=reason, **done._asdict())
    log.info("the drafter's weights: %s", form.summary)
    return form


def _choose(model: LoadedModel, settings: Settings) -> tuple[int, str]:
    """Bits, 0 for none, and why."""
    if settings.drafter_bits == "off":
        return 0, "asked for"
    if settings.drafter_bits != "auto":
        return int(settings.drafter_bits), "asked for"
    backend = detect_backend()
    by_rule = (
        (0, "float32 is the fast form of the CPU backend")
        if backend == "cpu"
        else (DEFAULT_BITS, "the default on a GPU")
    )
    table = model.target.config.get("quantization")
    if not isinstance(table, dict) or "bits" not in table:
        return by_rule
    if model.representation.form != "stored":
        return 0, "the target is served dense"
    try:
        verdict = kernel_verdict(model, settings, verify_share=0.0)  # a draft is one row
    except (MlxcelError, RuntimeError, MemoryError) as error:
        log.warning("no kernel profile (%s): the drafter is held as is the rule here", error)
        return by_rule
    return (DEFAULT_BITS if verdict.serve == "stored" else 0), verdict.reason
