"""Records from and to JSON values: every field present, none unknown, faults with their place."""

from __future__ import annotations

from typing import Any, get_args

from mlxcel.decide._fields import Fields
from mlxcel.decide.measured_json import made, parse_measured, parse_provenance, plain
from mlxcel.decide.record_row import MEASURED_FIELDS
from mlxcel.decide.records import (
    MEASURED_SCHEMA_VERSION,
    SCHEMA_VERSION,
    Exactness,
    Fit,
    Generation,
    Host,
    Kernel,
    Kind,
    Origin,
    Pairing,
    Protocol,
    Record,
    Row,
    Stage,
    TimeUnit,
    Timing,
)

__all__ = ["parse_record", "record_to_dict"]

_MAX_WIDTH = 1024
_MAX_COUNT = 2**31 - 1
_MAX_VALUE = 1e6

_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_GENERATIONS: tuple[Generation, ...] = get_args(Generation)
_KINDS: tuple[Kind, ...] = get_args(Kind)
_PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
_EXACTNESS: tuple[Exactness, ...] = get_args(Exactness)
_STAGES: tuple[Stage, ...] = get_args(Stage)
_KERNELS: tuple[Kernel, ...] = get_args(Kernel)
_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)


def parse_record(data: object, where: str = "record") -> Record:
    """Read one record.

    Parameters
    ----------
    data : object
        The JSON value, in the form of ``mlxcel/evidence/schema.json``.
    where : str
        Its place, for messages: the file, usually.

    Raises
    ------
    LoadError
        A field that is missing, unknown, of the wrong type or out of bounds, or values that
        contradict each other; names place, field, value and what is wanted.
    """
    fields = Fields(data, where)
    schema = fields.whole("schema", SCHEMA_VERSION, MEASURED_SCHEMA_VERSION)
    measured = schema == MEASURED_SCHEMA_VERSION
    values: dict[str, Any] = {
        "id": fields.text("id"),
        "origin": fields.word("origin", _ORIGINS),
        "address": fields.text_or_none("address"),
        "date": fields.date_or_none("date"),
        "host": _host(fields.inner("host")),
        "pairing": _pairing(fields.inner("pairing")),
        "protocol": fields.word("protocol", _PROTOCOLS),
        "tool": fields.text_or_none("tool"),
        "exactness": fields.word("exactness", _EXACTNESS),
        "round_loop": _round_loop(fields),
        "includes": fields.texts("includes"),
        "versions": fields.table("versions"),
        "classic_from": fields.text_or_none("classic_from"),
        "rows": tuple(_row(item, measured=measured) for item in fields.items("rows")),
        "fits": tuple(_fit(item) for item in fields.items("fits")),
        "timings": tuple(_timing(item) for item in fields.items("timings")),
        "notes": fields.text_or_none("notes"),
        "schema": schema,
        "provenance": parse_provenance(fields.inner("provenance")) if measured else None,
    }
    fields.close()
    return made(Record, values, where)


def record_to_dict(record: Record) -> dict[str, Any]:
    """The JSON value of a record; `parse_record` makes an equal record of it."""
    value: dict[str, Any] = plain(record)
    value["versions"] = dict(record.versions)
    if record.provenance is not None:
        value["provenance"]["versions"] = dict(record.provenance.versions)
        value["provenance"]["environment"] = dict(record.provenance.environment)
    else:
        del value["provenance"]
        for row in value["rows"]:
            for name in MEASURED_FIELDS:
                del row[name]
    return {"schema": value.pop("schema"), **value}


def _round_loop(fields: Fields) -> int | str:
    value = fields.take("round_loop")
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not value:
        raise fields.fault("round_loop", value, "a version number, or a text for another engine")
    return value


def _host(fields: Fields) -> Host:
    values = {
        "chip": fields.text("chip"),
        "generation": fields.word_or_none("generation", _GENERATIONS),
        "memory_gb": fields.number_or_none("memory_gb", 0.1, _MAX_VALUE),
    }
    fields.close()
    return made(Host, values, fields.where)


def _pairing(fields: Fields) -> Pairing:
    values = {
        "name": fields.text("name"),
        "kind": fields.word("kind", _KINDS),
        "target": fields.text("target"),
        "drafter": fields.text("drafter"),
        "target_quantization": fields.text_or_none("target_quantization"),
        "drafter_quantization": fields.text_or_none("drafter_quantization"),
        "batch_capable": fields.flag_or_none("batch_capable"),
    }
    fields.close()
    return made(Pairing, values, fields.where)


def _row(fields: Fields, *, measured: bool) -> Row:
    values: dict[str, Any] = {
        "prompt": fields.text_or_none("prompt"),
        "tokens": fields.whole_or_none("tokens", 1, _MAX_COUNT),
        "requested_width": fields.whole_or_none("requested_width", 1, _MAX_WIDTH),
        "effective_width": fields.whole_or_none("effective_width", 1, _MAX_WIDTH),
        "accepted": fields.whole_or_none("accepted", 0, _MAX_COUNT),
        "proposed": fields.whole_or_none("proposed", 1, _MAX_COUNT),
        "acceptance": fields.number_or_none("acceptance", 0, 1),
        "emitted_per_verify": fields.number_or_none("emitted_per_verify", 1, _MAX_WIDTH),
        "classic_tok_s": fields.number_or_none("classic_tok_s", 1e-6, _MAX_VALUE),
        "speculative_tok_s": fields.number_or_none("speculative_tok_s", 1e-6, _MAX_VALUE),
        "speedup": fields.number_or_none("speedup", 1e-6, 1e3),
        "spread_percent": fields.number_or_none("spread_percent", 0, 1e3),
        "n": fields.whole_or_none("n", 1, _MAX_COUNT),
        "classic_samples": fields.numbers_or_none("classic_samples"),
        "speculative_samples": fields.numbers_or_none("speculative_samples"),
        "note": fields.text_or_none("note"),
    }
    if measured:
        values |= parse_measured(fields)
    fields.close()
    return made(Row, values, fields.where)


def _fit(fields: Fields) -> Fit:
    fit = Fit(
        a=fields.number("a", -1e3, 1e3),
        b=fields.number("b", -1e3, 1e3),
        largest_residual=fields.number("largest_residual", 0, 1e3),
    )
    fields.close()
    return fit


def _timing(fields: Fields) -> Timing:
    timing = Timing(
        stage=fields.word("stage", _STAGES),
        width=fields.whole_or_none("width", 1, _MAX_WIDTH),
        kernel=fields.word_or_none("kernel", _KERNELS),
        value=fields.number("value", 0, _MAX_VALUE),
        unit=fields.word("unit", _UNITS),
    )
    fields.close()
    return timing
