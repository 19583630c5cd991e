"""Whether the figures of a cost-only record are those of its samples.

A cost-only record has the head of any measured record and no rows of text. In their place are
``timings`` of passes, ``parts`` of them, and ``figures``; what was built is under ``cost``.
Whatever is derived is derived by `mlxcel.decide.cost_figures`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.cost_figures import CostFigures, derive_costs
from mlxcel.decide.cost_raw import RawCosts, RawPart, RawPass
from mlxcel.decide.measured_words import memory_gb, protocol_word
from mlxcel.decide.record_json import parse_record
from mlxcel.decide.records import MEASURED_SCHEMA_VERSION, Record
from mlxcel.errors import LoadError, MlxcelError

__all__ = [
    "cost_complaints",
    "derived_values",
    "figures_of",
    "is_cost_record",
    "plain_record",
    "raw_of",
]

_TOLERANCE = 1e-9
_STAGES = ("classic", "verify", "draft", "round", "head")
_PLAIN_STAGES = ("verify", "draft", "round")
_PLAIN_TIMING = ("stage", "width", "kernel", "value", "unit")
_OWN = ("cost", "parts", "figures")
_CACHES = ("slot", "native")
_BACKENDS = ("metal", "cuda", "cpu")
_MOST = 1e18
_MOST_SECONDS = 1e6
_LAYERS = 4096


def is_cost_record(data: object) -> bool:
    """Whether a JSON value is meant as a cost-only record."""
    return isinstance(data, Mapping) and "cost" in data


def plain_record(data: Mapping[str, Any], where: str = "record") -> Record:
    """The record without what only a cost-only one has: its head, and times by stage and width.

    Raises
    ------
    LoadError
        The head, the provenance or the times are no valid record's.
    """
    timings = data.get("timings")
    kept = [
        {name: timing.get(name) for name in _PLAIN_TIMING}
        for timing in (timings if isinstance(timings, list) else [])
        if isinstance(timing, Mapping) and timing.get("stage") in _PLAIN_STAGES
    ]
    head = {name: value for name, value in data.items() if name not in _OWN}
    return parse_record({**head, "timings": kept}, where)


def derived_values(raw: RawCosts) -> dict[str, Any]:
    """Timings, parts, fits and figures of a record: samples, and all that follows from them."""
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
    fields.whole("schema", MEASURED_SCHEMA_VERSION, MEASURED_SCHEMA_VERSION)
    cost = fields.inner("cost")
    backend = cost.word("backend", _BACKENDS)
    layers = cost.whole("layers", 1, _LAYERS)
    published = cost.whole("layers_published", layers, _LAYERS)
    peak: Any = cost.take("peak")
    rates = (None, None) if peak is None else _peak(Fields(peak, f"{where}: cost: peak"))
    _built(cost)
    return RawCosts(
        backend=backend,
        layers=layers,
        layers_published=published,
        passes=tuple(_pass(item) for item in fields.items("timings")),
        parts=tuple(_part(item) for item in fields.items("parts")),
        bytes_per_second=rates[0],
        flops_per_second=rates[1],
    )


def _built(cost: Fields) -> None:
    """Check the form of what no figure follows from, but pages show."""
    for name in ("source", "dtype"):
        cost.text(name)
    for name in ("context", "columns"):
        cost.whole(name, 1, int(_MOST))
    cost.word("caches", _CACHES)
    cost.whole("drafter_bytes", 0, int(_MOST))
    cost.number("seconds", 0, _MOST)
    cost.table("skipped")
    sizes = cost.mapping("target_bytes")
    target = Fields(sizes, f"{cost.where}: target_bytes")
    for form in sizes:
        target.whole(form, 1, int(_MOST))
    cost.close()


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
        derived = derived_values(raw_of(record, where))
        plain = plain_record(record, where)
    except MlxcelError as error:
        return [error.message]
    found: list[str] = []
    for name, value in derived.items():
        _compare(f"{where}: {name}", record.get(name), value, found)
    source = plain.provenance
    if source is None or not source.cost_only:
        found.append(f"{where}: provenance: cost_only must be true of a record without rows")
    else:
        _compare(f"{where}: protocol", plain.protocol, protocol_word(source), found)
        _compare(f"{where}: host.memory_gb", plain.host.memory_gb, memory_gb(source), found)
    if plain.rows:
        found.append(f"{where}: rows must be empty, since no text was decoded")
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
        # By comparison: a whole number may be too large for a float.
        if not abs(stored) <= sys.float_info.max:
            return False
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
    rates = (
        fields.number("bytes_per_second", 1, _MOST),
        fields.number("flops_per_second", 1, _MOST),
    )
    fields.text("source")
    fields.close()
    return rates


def _samples(fields: Fields, name: str) -> tuple[float, ...]:
    found = fields.numbers_or_none(name)
    if found is None:
        raise LoadError(f"{fields.where}: {name} must be a list of positive seconds, got null")
    if max(found) > _MOST_SECONDS:
        raise fields.fault(name, max(found), f"at most {_MOST_SECONDS:g} seconds each")
    return found
