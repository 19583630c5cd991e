"""Whether a measured record's figures are those of its raw samples.

Works on the JSON value, so that a record in which a figure was edited is told what was edited,
even where the edited figure contradicts another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxcel.decide._fields import Fields
from mlxcel.decide.bench_figures import DERIVED, Figures, derive
from mlxcel.decide.bench_sweep import fits_of
from mlxcel.decide.cost_recompute import cost_complaints, is_cost_record
from mlxcel.decide.measured_json import parse_provenance, parse_raw, plain
from mlxcel.decide.measured_words import exactness_word, memory_gb, protocol_word
from mlxcel.decide.record_json import parse_record
from mlxcel.decide.records import MEASURED_SCHEMA_VERSION, Record
from mlxcel.errors import LoadError, MlxcelError

__all__ = ["complaints"]


def complaints(data: object, where: str = "record") -> list[str]:
    """Everything that is wrong with a record.

    Parameters
    ----------
    data : object
        Its JSON value. A record without raw samples is checked for its form alone.
    where : str
        Its place, for messages.

    Returns
    -------
    list of str
        One for each figure that its samples contradict, with row, field, the stored and the
        recomputed value; then what else makes it no valid record. Empty for a sound one.
    """
    if isinstance(data, Mapping) and is_cost_record(data):
        return cost_complaints(data, where)
    found = list(_edited(data, where)) if _measured(data) else []
    try:
        record = parse_record(data, where)
    except LoadError as error:
        return [*found, error.message]
    if record.schema == MEASURED_SCHEMA_VERSION:
        found += _of_whole(record, where)
    return found


def _measured(data: object) -> bool:
    return isinstance(data, Mapping) and data.get("schema") == MEASURED_SCHEMA_VERSION


def _edited(data: Any, where: str) -> Iterator[str]:
    """Figures of rows that are not those of their samples, as far as the samples can be read."""
    try:
        guards = parse_provenance(Fields(data.get("provenance"), f"{where}: provenance")).guards
    except LoadError:
        return  # parse_record says so
    rows = data.get("rows")
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        try:
            raw = parse_raw(Fields(row["raw"], "raw"))
            width = int(row["requested_width"])
        except (LoadError, KeyError, TypeError, ValueError, OverflowError):
            continue  # parse_record says so
        place = f"{where}: rows[{number}] ({row.get('prompt')}, width {width})"
        try:
            figures = derive(raw, requested_width=width, guards=guards)
        except MlxcelError as error:
            yield f"{place}: {error.message}"
            continue
        yield from _differences(row, figures, place)


def _differences(row: Mapping[str, Any], figures: Figures, place: str) -> Iterator[str]:
    for name in DERIVED:
        wanted = plain(getattr(figures, name))
        if name in row and not _same(row[name], wanted):
            yield (
                f"{place}: {name} is {row[name]!r}, but {wanted!r} by the raw samples; restore it "
                "or measure again"
            )


def _same(stored: object, wanted: object) -> bool:
    return stored == wanted and isinstance(stored, bool) == isinstance(wanted, bool)


def _of_whole(record: Record, where: str) -> Iterator[str]:
    """What follows from all rows together, and from the provenance."""
    found = record.provenance
    if found is None or found.cost_only:
        return
    for name, stored, wanted in (
        ("fits", plain(record.fits), plain(fits_of(record.rows))),
        ("protocol", record.protocol, protocol_word(found)),
        ("exactness", record.exactness, exactness_word(found, record.rows)),
        ("host.memory_gb", record.host.memory_gb, memory_gb(found)),
    ):
        if stored != wanted:
            yield (
                f"{where}: {name} is {stored!r}, but {wanted!r} by rows and provenance; restore "
                "it or measure again"
            )
