"""Makes cost-only records: what passes of a geometry cost on a host, with every sample.

`mlxcel.decide.cost_recompute` says what such a record holds, and checks one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.bench.provenance import record_host
from mlxcel.decide.cost_raw import RawCosts, RawPart, RawPass
from mlxcel.decide.cost_recompute import derived_values
from mlxcel.decide.measured_json import plain
from mlxcel.decide.measured_words import protocol_word
from mlxcel.decide.provenance import Provenance
from mlxcel.decide.records import MEASURED_SCHEMA_VERSION
from mlxcel.hardware.cost_times import CostTimes
from mlxcel.hardware.host import Host
from mlxcel.hardware.peaks import Peak

__all__ = ["CostIdentity", "cost_id", "cost_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostIdentity:
    """Names that a record carries.

    Attributes
    ----------
    geometry, source : str
        Name of the geometry, and where its numbers were found.
    target, drafter : str
        Published checkpoints of these sizes; ``drafter`` may be empty.
    target_quantization, drafter_quantization : str
        ``4-bit`` and the like.
    batch_capable : bool or None
        Whether the target can batch.
    day : str
        ISO date.
    """

    geometry: str
    source: str
    target: str
    drafter: str
    target_quantization: str
    drafter_quantization: str
    batch_capable: bool | None
    day: str


def cost_record(
    times: CostTimes,
    identity: CostIdentity,
    host: Host,
    peak: Peak | None,
    provenance: Provenance,
) -> dict[str, Any]:
    """Make a record of what was measured, as JSON values.

    Parameters
    ----------
    times : CostTimes
        All samples.
    identity : CostIdentity
        Names.
    host : Host
        Where it was measured.
    peak : Peak or None
        What its chip can do at most, where that is known.
    provenance : Provenance
        Of a cost-only record.

    Raises
    ------
    ConfigError
        The samples give no figures; see `derive_costs`.
    """
    head = _head(times, identity, host, provenance)
    cost = {"cost": _cost(times, identity, peak)}
    return head | cost | derived_values(_raw(times, peak))


def _head(
    times: CostTimes, identity: CostIdentity, host: Host, provenance: Provenance
) -> dict[str, Any]:
    """What every measured record begins with."""
    return {
        "schema": MEASURED_SCHEMA_VERSION,
        "id": cost_id(identity, host, times.layers, times.layers_published),
        "origin": "measured",
        "address": None,
        "date": identity.day,
        "host": plain(record_host(host)),
        "pairing": {
            "name": identity.geometry,
            "kind": "mtp",
            "target": identity.target,
            "drafter": identity.drafter or "none",
            "target_quantization": identity.target_quantization,
            "drafter_quantization": identity.drafter_quantization or None,
            "batch_capable": identity.batch_capable,
        },
        "protocol": protocol_word(provenance),
        "tool": "mlxcel bench cost",
        "exactness": "unknown",
        "round_loop": provenance.round_loop,
        "includes": [],
        "versions": dict(provenance.versions),
        "classic_from": None,
        "rows": [],
        "provenance": plain(provenance)
        | {
            "versions": dict(provenance.versions),
            "environment": dict(provenance.environment),
        },
        "notes": _notes(times),
    }


def cost_id(identity: CostIdentity, host: Host, layers: int, layers_published: int) -> str:
    """The id of a record, known before anything is measured: it names the files.

    Parameters
    ----------
    identity : CostIdentity
        Names and day.
    host : Host
        Where it is measured.
    layers, layers_published : int
        Layers that are built, and those of the published model.
    """
    part = f"-{layers}-layers" if layers < layers_published else ""
    return _slug(f"{host.chip}-{identity.geometry}{part}-cost-{identity.day}")


def _cost(times: CostTimes, identity: CostIdentity, peak: Peak | None) -> dict[str, Any]:
    """What was built, and on what."""
    return {
        "source": identity.source,
        "layers": times.layers,
        "layers_published": times.layers_published,
        "context": times.context,
        "columns": times.columns,
        "backend": times.backend,
        "dtype": times.dtype,
        "caches": times.caches,
        "target_bytes": dict(times.target_bytes),
        "drafter_bytes": times.drafter_bytes,
        "skipped": dict(times.skipped),
        "seconds": round(times.seconds, 3),
        "peak": None if peak is None else asdict(peak),
    }


def _raw(times: CostTimes, peak: Peak | None) -> RawCosts:
    passes = tuple(
        RawPass(
            stage=key.stage,
            form=key.form,
            width=key.width,
            tokens=key.tokens,
            waited=key.waited,
            seconds=tuple(_whole(sample.seconds) for sample in samples),
            host=tuple(_whole(sample.host) for sample in samples),
        )
        for key, samples in times.passes.items()
    )
    parts = tuple(
        RawPart(
            name=key.name,
            form=key.form,
            tokens=key.tokens,
            seconds=tuple(map(_whole, part.seconds)),
            nbytes=part.nbytes,
            flops=part.flops,
        )
        for key, part in times.parts.items()
    )
    return RawCosts(
        backend=times.backend,
        layers=times.layers,
        layers_published=times.layers_published,
        passes=passes,
        parts=parts,
        bytes_per_second=None if peak is None else peak.bytes_per_second,
        flops_per_second=None if peak is None else peak.flops_per_second,
    )


def _whole(seconds: float) -> float:
    """Seconds to the nanosecond, so that what is written is what figures are derived from."""
    return max(round(seconds, 9), 1e-9)


def _slug(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part)


def _notes(times: CostTimes) -> str:
    text = "random weights: costs only, no acceptance and no exactness"
    if times.layers < times.layers_published:
        text += (
            f"; {times.layers} of {times.layers_published} layers were built and their cost "
            "scaled, with the output head paid once"
        )
    if times.caches == "native":
        text += "; on mlx-lm's caches, without the replay of accepted tokens"
    return text
