"""Raw samples and provenance from and to JSON values; see `mlxcel.decide.record_json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_args

from mlxcel.decide._fields import Fields
from mlxcel.decide.exactness import Level
from mlxcel.decide.provenance import DraftsCounted, ExactnessNote, KernelNote, Provenance
from mlxcel.decide.raw_runs import Arm, Difference, RawRow, Run
from mlxcel.errors import LoadError

__all__ = ["made", "parse_measured", "parse_provenance", "parse_raw", "plain"]

_Made = TypeVar("_Made")

_ARMS: tuple[Arm, ...] = get_args(Arm)
_LEVELS: tuple[Level, ...] = get_args(Level)
_DRAFTS: tuple[DraftsCounted, ...] = get_args(DraftsCounted)
_MAX_WIDTH = 1024
_MAX_COUNT = 2**31 - 1
_MAX_SECONDS = 1e8
_MAX_VALUE = 1e6


def made(kind: Callable[..., _Made], values: Mapping[str, Any], where: str) -> _Made:
    """Make a value; what its own checks say gets its place.

    Raises
    ------
    LoadError
        The values contradict each other.
    """
    try:
        return kind(**values)
    except LoadError as error:
        raise LoadError(f"{where}: {error.message}", param=error.param) from None


def parse_provenance(fields: Fields) -> Provenance:
    """Read a provenance.

    Raises
    ------
    LoadError
        See `mlxcel.decide.record_json.parse_record`.
    """
    values = {
        "memory_bytes": fields.whole("memory_bytes", 1, 2**60),
        "system": fields.text("system"),
        "python": fields.text("python"),
        "versions": fields.table("versions"),
        "commit": fields.text_or_none("commit"),
        "dirty": fields.flag_or_none("dirty"),
        "command": fields.texts("command"),
        "environment": fields.table("environment"),
        "blas": fields.text("blas"),
        "kernel": _kernel(fields.inner_or_none("kernel")),
        "exactness": _exactness(fields.inner_or_none("exactness")),
        "started": fields.text("started"),
        "seconds": fields.number("seconds", 0, _MAX_SECONDS),
        "guards": fields.mapping("guards"),
        "round_loop": fields.whole("round_loop", 1, _MAX_COUNT),
        "cost_only": fields.flag("cost_only"),
        "drafts": fields.word("drafts", _DRAFTS),
    }
    fields.close()
    return made(Provenance, values, fields.where)


def parse_measured(fields: Fields) -> dict[str, Any]:
    """Read the fields of a row that only measured ones have; the others stay untaken."""
    interval = fields.numbers_or_none("interval")
    if interval is None or len(interval) != 2 or interval[0] > interval[1]:
        raise fields.fault("interval", interval, "two numbers, the lower one first")
    return {
        "raw": parse_raw(fields.inner("raw")),
        "interval": interval,
        "round_cost": fields.number("round_cost", 1e-6, _MAX_VALUE),
        "publishable": fields.flag("publishable"),
        "reasons": fields.texts("reasons"),
        "exact": fields.flag("exact"),
        "first_difference": _difference(fields.inner_or_none("first_difference")),
    }


def parse_raw(fields: Fields) -> RawRow:
    """Read the raw samples of a row.

    Raises
    ------
    LoadError
        See `mlxcel.decide.record_json.parse_record`.
    """
    values = {
        "pairs": tuple(
            tuple(_run(each) for each in block) for block in fields.item_lists("pairs")
        ),
        "null": tuple(_run(each) for each in fields.items("null")),
    }
    fields.close()
    return made(RawRow, values, fields.where)


def plain(value: Any) -> Any:
    """A frozen value as JSON: objects for records, lists for tuples."""
    if is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in fields_of(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def _run(fields: Fields) -> Run:
    values = {
        "arm": fields.word("arm", _ARMS),
        "tokens": fields.whole("tokens", 1, _MAX_COUNT),
        "seconds": fields.number("seconds", 0, _MAX_SECONDS),
        "rounds": fields.whole("rounds", 1, _MAX_COUNT),
        "proposed": fields.whole("proposed", 0, _MAX_COUNT),
        "accepted": fields.whole("accepted", 0, _MAX_COUNT),
        "width_min": fields.whole("width_min", 1, _MAX_WIDTH),
        "width_max": fields.whole("width_max", 1, _MAX_WIDTH),
        "ids_sha256": fields.text("ids_sha256"),
        "started_s": fields.number("started_s", 0, _MAX_SECONDS),
        "accepted_by_position": fields.wholes("accepted_by_position"),
        "profiling": fields.flag("profiling"),
    }
    fields.close()
    return made(Run, values, fields.where)


def _difference(fields: Fields | None) -> Difference | None:
    if fields is None:
        return None
    found = Difference(
        position=fields.whole("position", 0, _MAX_COUNT),
        margin=fields.number_or_none("margin", 0, _MAX_VALUE),
    )
    fields.close()
    return found


def _kernel(fields: Fields | None) -> KernelNote | None:
    if fields is None:
        return None
    found = KernelNote(form=fields.text("form"), verdict=fields.text_or_none("verdict"))
    fields.close()
    return found


def _exactness(fields: Fields | None) -> ExactnessNote | None:
    if fields is None:
        return None
    found = ExactnessNote(level=fields.word("level", _LEVELS), reason=fields.text("reason"))
    fields.close()
    return found
