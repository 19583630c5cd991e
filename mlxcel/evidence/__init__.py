"""The evidence that comes with the package, and folders of further records. Holds no logic.

One JSON file per measurement campaign, in the form of ``schema.json``; predictions in
``predictions/``, cost-only records in ``cost/``; ``decision.json`` is what was last decided from
them. This module only reads; `mlxcel.evidence.folder` adds files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from mlxcel.decide.agreement import Decision, parse_decision
from mlxcel.decide.cost_recompute import cost_complaints, is_cost_record
from mlxcel.decide.prediction import Prediction, parse_prediction
from mlxcel.decide.record_json import parse_record
from mlxcel.decide.records import Record
from mlxcel.errors import LoadError

__all__ = [
    "load_cost_records",
    "load_decision",
    "load_predictions",
    "load_record",
    "load_records",
    "read_json",
    "record_schema",
]

_OTHER_FILES = ("schema.json", "decision.json")

_Parsed = TypeVar("_Parsed")


def load_records(folders: Iterable[Path] = (), *, packaged: bool = True) -> tuple[Record, ...]:
    """Read the package's records and those of further folders.

    Parameters
    ----------
    folders : iterable of Path
        Folders whose ``*.json`` files are records.
    packaged : bool
        Whether to read the package's own.

    Returns
    -------
    tuple of Record
        The package's first, each folder in the order of file names.

    Raises
    ------
    LoadError
        A folder that is not there, a file that is not JSON or no valid record, or an id that
        two files use; names the file and the reason.
    """
    sources = [item for item in _json_files(files(__name__)) if item.name not in _OTHER_FILES]
    sources = sources if packaged else []
    for folder in folders:
        if not folder.is_dir():
            raise LoadError(f"{folder}: there is no such folder of evidence; correct the path")
        sources += _json_files(folder)
    records: dict[str, Record] = {}
    for source in sources:
        record = _parsed(source, parse_record)
        if record.id in records:
            raise LoadError(f"{source}: another file has the id {record.id!r} too; rename one")
        records[record.id] = record
    return tuple(records.values())


def load_record(path: Path) -> Record:
    """Read the record of one file, as `load_records` reads each."""
    return _parsed(path, _no_cost_record)


def _no_cost_record(data: object, where: str) -> Record:
    """A record of rows; one of costs is told apart from a damaged one."""
    if is_cost_record(data):
        raise LoadError(
            f"{where}: is a cost-only record, with no rows of text to compare or to decide by; "
            "mlxcel bench cost --record shows it, mlxcel bench verify checks it"
        )
    return parse_record(data, where)


def load_predictions(folders: Iterable[Path] = ()) -> tuple[Prediction, ...]:
    """Read the package's predictions and those of further folders of evidence.

    Parameters
    ----------
    folders : iterable of Path
        Folders of records; predictions are in their ``predictions/``, where there is one.

    Returns
    -------
    tuple of Prediction
        The package's first, each folder in the order of file names.

    Raises
    ------
    LoadError
        A file that is not JSON or no valid prediction, or an id that two files use.
    """
    sources = _json_files(files(__name__).joinpath("predictions"))
    for folder in folders:
        own = folder / "predictions"
        sources += _json_files(own) if own.is_dir() else []
    predictions: dict[str, Prediction] = {}
    for source in sources:
        item = _parsed(source, parse_prediction)
        if item.id in predictions:
            raise LoadError(f"{source}: another file has the id {item.id!r} too; rename one")
        predictions[item.id] = item
    return tuple(predictions.values())


def load_cost_records(folder: Path | None = None) -> tuple[dict[str, Any], ...]:
    """Read the package's cost-only records, or those of a folder, in the order of file names.

    They are no evidence of the gate, which decides by gains.

    Raises
    ------
    LoadError
        A file that is not JSON, or has a figure that its samples contradict.
    """
    place: Traversable = files(__name__).joinpath("cost") if folder is None else folder
    if not place.is_dir():  # the package may have none yet
        return ()
    return tuple(_parsed(source, _sound_cost) for source in _json_files(place))


def _sound_cost(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise LoadError(f"{where} must be an object with named fields, got {data!r}")
    for line in cost_complaints(data, where):
        raise LoadError(line)
    return data


def load_decision() -> Decision:
    """Read what was last decided from the evidence."""
    return _parsed(files(__name__).joinpath("decision.json"), parse_decision)


def record_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a record."""
    schema: dict[str, Any] = json.loads(files(__name__).joinpath("schema.json").read_text("utf-8"))
    return schema


def _json_files(folder: Traversable) -> list[Traversable]:
    found: Iterator[Traversable] = (i for i in folder.iterdir() if i.name.endswith(".json"))
    return sorted(found, key=lambda item: item.name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that an object gives twice; JSON would keep the last in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} occurs twice")
    return found


def read_json(source: Traversable) -> object:
    """The JSON value of a file.

    Raises
    ------
    LoadError
        It cannot be read, or is not JSON; names the file and the reason.
    """
    try:
        return json.loads(source.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (OSError, RecursionError, ValueError) as error:
        raise LoadError(f"{source}: not readable as JSON ({error}); repair or remove it") from None


def _parsed(source: Traversable, parse: Callable[[object, str], _Parsed]) -> _Parsed:
    return parse(read_json(source), str(source))
