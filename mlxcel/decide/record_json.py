"""Records from and to JSON values: every field present, none unknown, faults with their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar, get_args

from mlxcel.decide._fields import Fields
from mlxcel.decide.records import (
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
from mlxcel.errors import LoadError

__all__ = ["parse_record", "record_to_dict"]

_Made = TypeVar("_Made")

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
    fields.whole("schema", SCHEMA_VERSION, SCHEMA_VERSION)
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
        "rows": tuple(_row(item) for item in fields.items("rows")),
        "fits": tuple(_fit(item) for item in fields.items("fits")),
        "timings": tuple(_timing(item) for item in fields.items("timings")),
        "notes": fields.text_or_none("notes"),
    }
    fields.close()
    return _made(Record, values, where)


def record_to_dict(record: Record) -> dict[str, Any]:
    """The JSON value of a record; `parse_record` makes an equal record of it."""
    value = asdict(record)
    value["versions"] = dict(record.versions)
    value["includes"] = list(record.includes)
    for name in ("rows", "fits", "timings"):
        value[name] = [
            {key: list(v) if isinstance(v, tuple) else v for key, v in item.items()}
            for item in value[name]
        ]
    return {"schema": SCHEMA_VERSION, **value}


def _made(kind: Callable[..., _Made], values: dict[str, Any], where: str) -> _Made:
    """Make a value; what its own checks say gets its place."""
    try:
        return kind(**values)
    except LoadError as error:
        raise LoadError(f"{where}: {error.message}", param=error.param) from None


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
    return _made(Host, values, fields.where)


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
    return _made(Pairing, values, fields.where)


def _row(fields: Fields) -> Row:
    values = {
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
    fields.close()
    return _made(Row, values, fields.where)


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
