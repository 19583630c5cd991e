"""Cost-only records: what passes of a geometry cost on a host, with every sample.

A record has the head of any measured record, no rows of text, and in their place ``timings`` of
passes, ``parts`` of them and ``figures``. Whatever is derived is derived from the samples by
`mlxcel.decide.cost_figures`, so `cost_complaints` can work it out again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.cost_figures import CostFigures, derive_costs
from mlxcel.decide.cost_raw import RawCosts, RawPart, RawPass
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.errors import LoadError, MlxcelError
from mlxcel.hardware.cost_times import CostTimes
from mlxcel.hardware.host import Host
from mlxcel.hardware.peaks import Peak

__all__ = ["CostIdentity", "cost_complaints", "cost_record", "figures_of", "raw_of"]

SCHEMA = 2
_TOLERANCE = 1e-9
_STAGES = ("classic", "verify", "draft", "round", "head")
_MOST = 1e18
_LAYERS = 4096


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
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Make a record of what was measured, as JSON values.

    Raises
    ------
    ConfigError
        The samples give no figures; see `derive_costs`.
    """
    layers = f"-{times.layers}-layers" if times.layers < times.layers_published else ""
    head = {
        "schema": SCHEMA,
        "id": _slug(f"{host.chip}-{identity.geometry}{layers}-cost-{identity.day}"),
        "origin": "measured",
        "address": None,
        "date": identity.day,
        "host": {
            "chip": host.chip,
            "generation": _generation(host),
            "memory_gb": round((host.gpu_memory_bytes or host.memory_bytes) / 1e9, 1),
        },
        "pairing": {
            "name": identity.geometry,
            "kind": "mtp",
            "target": identity.target,
            "drafter": identity.drafter or "none",
            "target_quantization": identity.target_quantization,
            "drafter_quantization": identity.drafter_quantization or None,
            "batch_capable": identity.batch_capable,
        },
        "protocol": "unguarded",
        "tool": "mlxcel bench cost",
        "exactness": "unknown",
        "round_loop": ROUND_LOOP_VERSION,
        "includes": [],
        "versions": dict(provenance.get("versions", {})),
        "classic_from": None,
        "rows": [],
        "provenance": dict(provenance),
        "notes": _notes(times),
    }
    cost = {
        "source": identity.source,
        "layers": times.layers,
        "layers_published": times.layers_published,
        "context": times.context,
        "columns": times.columns,
        "dtype": times.dtype,
        "caches": times.caches,
        "target_bytes": dict(times.target_bytes),
        "drafter_bytes": times.drafter_bytes,
        "skipped": dict(times.skipped),
        "seconds": round(times.seconds, 3),
        "peak": None if peak is None else asdict(peak),
    }
    return head | {"cost": cost} | _derived(_raw(times, peak))


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


def _derived(raw: RawCosts) -> dict[str, Any]:
    """Samples and figures: everything of a record that follows from the samples."""
    figures = derive_costs(raw)
    wide = {form.form: "wide" if form.wide else "narrow" for form in figures.forms}
    derived = {
        (each.stage, each.form, each.width, each.tokens, each.waited): each
        for each in figures.passes
    }
    timings = []
    for one in raw.passes:
        found = derived.get(one.key)
        timings.append(
            {
                "stage": one.stage,
                "width": one.width,
                "kernel": wide[one.form],
                "value": None if found is None else found.milliseconds,
                "unit": "ms",
                "form": one.form,
                "tokens": one.tokens,
                "waited": one.waited,
                "steps": None if found is None else found.steps,
                "spread_percent": None if found is None else found.spread_percent,
                "host_share": None if found is None else found.host_share,
                "seconds": list(one.seconds),
                "host_seconds": list(one.host),
            }
        )
    parts = [
        asdict(figure) | {"seconds": list(part.seconds), "nbytes": part.nbytes,
                          "flops": part.flops}
        for part, figure in zip(raw.parts, figures.parts, strict=True)
    ]  # fmt: skip
    summary = figures.to_dict()
    del summary["passes"], summary["parts"]
    fits = [
        {"a": form.fit.a, "b": form.fit.b, "largest_residual": form.fit.largest_residual}
        for form in figures.forms
        if form.fit is not None
    ]
    return {"timings": timings, "parts": parts, "fits": fits, "figures": summary}


def raw_of(record: Mapping[str, Any], where: str = "record") -> RawCosts:
    """Read the samples of a record.

    Raises
    ------
    LoadError
        A field that is missing or out of bounds; names place, field and value.
    """
    fields = Fields(record, where)
    fields.whole("schema", SCHEMA, SCHEMA)
    cost = fields.inner("cost")
    layers = cost.whole("layers", 1, _LAYERS)
    published = cost.whole("layers_published", layers, _LAYERS)
    peak: Any = cost.take("peak")
    rates = (None, None) if peak is None else _peak(Fields(peak, f"{where}: cost: peak"))
    return RawCosts(
        layers=layers,
        layers_published=published,
        passes=tuple(_pass(item) for item in fields.items("timings")),
        parts=tuple(_part(item) for item in fields.items("parts")),
        bytes_per_second=rates[0],
        flops_per_second=rates[1],
    )


def figures_of(record: Mapping[str, Any], where: str = "record") -> CostFigures:
    """Derive the figures of a record from its samples; errors are those of `raw_of`."""
    return derive_costs(raw_of(record, where))


def cost_complaints(record: Mapping[str, Any], where: str = "record") -> list[str]:
    """Compare every derived figure with what the samples give.

    Returns
    -------
    list of str
        One line per figure that differs, with what is stored and what is derived; one line for
        a record that cannot be read. Empty for a good one.
    """
    try:
        derived = _derived(raw_of(record, where))
    except MlxcelError as error:
        return [error.message]
    found: list[str] = []
    for name, value in derived.items():
        _compare(f"{where}: {name}", record.get(name), value, found)
    provenance = record.get("provenance")
    if not isinstance(provenance, Mapping) or provenance.get("cost_only") is not True:
        found.append(f"{where}: provenance: cost_only must be true of a record without rows")
    return found


def _compare(where: str, stored: Any, derived: Any, found: list[str]) -> None:
    if isinstance(derived, Mapping) and isinstance(stored, Mapping):
        for name in sorted({*derived, *stored}):
            _compare(f"{where}: {name}", stored.get(name), derived.get(name), found)
    elif isinstance(derived, list) and isinstance(stored, list) and len(derived) == len(stored):
        for at, (old, new) in enumerate(zip(stored, derived, strict=True)):
            _compare(f"{where}[{at}]", old, new, found)
    elif not _equal(stored, derived):
        found.append(f"{where} is {stored!r}, but the samples give {derived!r}")


def _equal(stored: Any, derived: Any) -> bool:
    numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) for v in (stored, derived)]
    if all(numbers):
        return math.isclose(stored, derived, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return type(stored) is type(derived) and stored == derived


def _pass(fields: Fields) -> RawPass:
    return RawPass(
        stage=fields.word("stage", _STAGES),
        form=fields.text("form"),
        width=fields.whole("width", 1, 1024),
        tokens=fields.whole("tokens", 1, 1024),
        waited=bool(fields.flag_or_none("waited")),
        seconds=_samples(fields, "seconds"),
        host=_samples(fields, "host_seconds"),
    )


def _part(fields: Fields) -> RawPart:
    return RawPart(
        name=fields.text("name"),
        form=fields.text("form"),
        tokens=fields.whole("tokens", 1, 1024),
        seconds=_samples(fields, "seconds"),
        nbytes=fields.whole("nbytes", 0, int(_MOST)),
        flops=fields.number("flops", 0, _MOST),
    )


def _peak(fields: Fields) -> tuple[float, float]:
    return (
        fields.number("bytes_per_second", 1, _MOST),
        fields.number("flops_per_second", 1, _MOST),
    )


def _samples(fields: Fields, name: str) -> tuple[float, ...]:
    found = fields.numbers_or_none(name)
    if found is None:
        raise LoadError(f"{fields.where}: {name} must be a list of positive seconds, got null")
    return found


def _slug(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part)


def _generation(host: Host) -> str | None:
    apple = host.backend == "metal" and host.chip.startswith("Apple M")
    return host.chip[6:8] if apple else None


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
