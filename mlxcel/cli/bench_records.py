"""``mlxcel bench compare``, ``predict`` and ``submit``: what is done with finished records."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from mlxcel.cli.as_json import json_option, write_json
from mlxcel.decide.agreement import Decision
from mlxcel.decide.carried_prediction import predict
from mlxcel.decide.carry import carry
from mlxcel.decide.chips import GATE_TABLE
from mlxcel.decide.comparable import mismatches
from mlxcel.decide.comparison import LEAST_EFFECT, P_LIMIT
from mlxcel.decide.comparison import compare as compare_rows
from mlxcel.decide.host_names import host_name
from mlxcel.decide.prediction import prediction_to_dict
from mlxcel.decide.record_json import record_to_dict
from mlxcel.decide.records import Record
from mlxcel.decide.submission import Effect, effect_of, refuse_known
from mlxcel.errors import ConfigError, LoadError
from mlxcel.evidence import load_decision, load_predictions, load_record, load_records
from mlxcel.evidence.folder import PACKAGED, add_file, as_text

__all__ = ["compare", "predict_command", "submit", "verify_record"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_HELP = {"help_option_names": ["-h", "--help"]}
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


def verify_record(record: Record) -> list[str]:
    """What is wrong with a record's derived figures; see `mlxcel.bench.verify`."""
    found: list[str] = importlib.import_module("mlxcel.bench.verify").verify_record(record)
    return found


def _folder_option(command: _Command) -> _Command:
    return click.option(
        "--evidence",
        "folder",
        type=_FOLDER,
        metavar="FOLDER",
        help="A folder of records of your own; default: the evidence of the package.",
    )(command)


def _tables() -> Any:
    """The tables; they need rich, which --help and --json do not."""
    return importlib.import_module("mlxcel.cli.bench_record_tables")


def _own(folder: Path | None) -> tuple[Path, ...]:
    """The further folder, if it is one and there is something in it yet."""
    if folder is None or not folder.is_dir() or folder.resolve() == PACKAGED.resolve():
        return ()
    return (folder,)


@click.command(context_settings=_HELP, short_help="Say which rows became faster or slower.")
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="FIELD",
    help="A field that may differ since the comparison is about it; may be repeated.",
)
@click.option(
    "--least-effect",
    type=click.FloatRange(0, 1, max_open=True),
    default=LEAST_EFFECT,
    show_default=True,
    help="Smallest relative difference that counts.",
)
@json_option
def compare(
    first: Path, second: Path, varied: tuple[str, ...], least_effect: float, as_json: bool
) -> None:
    """Say which rows of record SECOND are faster or slower than those of FIRST.

    Refuses records that were not taken alike, and names all that differs.
    """
    one, two = (record_to_dict(load_record(path)) for path in (first, second))
    differences = mismatches(one, two, varied)
    if differences:
        told = "; ".join(map(str, differences))
        raise ConfigError(
            f"{first} and {second} cannot be compared, they differ in {told}. Measure one of them "
            "again, or name with --vary what the comparison is about"
        )
    changes = compare_rows(one, two, least_effect=least_effect)
    if as_json:
        rows = [dataclasses.asdict(change) for change in changes]
        write_json({"first": one["id"], "second": two["id"], "p_limit": P_LIMIT, "rows": rows})
        return
    _tables().show_changes(one, two, changes)


@click.command(
    "predict", context_settings=_HELP, short_help="Carry a sweep to another host or pairing."
)
@click.argument("record", metavar="RECORD")
@click.option("--host", metavar="NAME", help='Carry it to this chip, as "Apple M1 Ultra".')
@click.option("--pairing", metavar="NAME", help="Carry it to this pairing on the same host.")
@click.option("--width", type=click.IntRange(2, 64), default=4, show_default=True,
              help="Block width to predict.")  # fmt: skip
@click.option("--through", metavar="NAME", help="Pairing (or host) whose sweeps lead there.")
@click.option(
    "--widths",
    type=click.Choice(["ran", "requested"]),
    default="ran",
    show_default=True,
    help="Fit over the mean widths of the rounds, or over those asked for.",
)
@click.option("--by", default="mlxcel bench predict", show_default=True, help="Who predicts.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@_folder_option
@json_option
def predict_command(
    record: str,
    host: str | None,
    pairing: str | None,
    width: int,
    through: str | None,
    widths: Any,
    by: str,
    dry_run: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Carry the round costs of a width sweep to another host or pairing.

    RECORD is the id of a record or a file. The prediction is written into the folder
    `predictions` of the evidence and judged by `mlxcel gate predictions` once rows arrive.
    """
    records = load_records(_own(folder))
    source, records = _source(record, records)
    chip = None if host is None else _chip(host, records)
    if pairing is not None:
        pairing = _as_known(pairing, (item.pairing.name for item in records))
    carried = carry(records, source, chip=chip, pairing=pairing, widths=widths, through=through)
    today = datetime.now(UTC).date().isoformat()
    made = predict(carried, records, width=width, made_on=today, by=by)
    value = prediction_to_dict(made)
    path = None
    if not dry_run:
        path = add_file((folder or PACKAGED) / "predictions", made.id, as_text(value))
    if as_json:
        write_json({**value, "file": None if path is None else str(path)})
        return
    _tables().show_prediction(made, path)


def _chip(host: str, records: Sequence[Record]) -> str:
    chips = [item.host.chip for item in records]
    return _as_known(host_name(host, chips), chips)


def _as_known(name: str, known: Iterable[str]) -> str:
    """A name as the evidence writes it, if it does."""
    return {item.casefold(): item for item in known}.get(name.casefold(), name)


def _source(name: str, records: tuple[Record, ...]) -> tuple[Record, tuple[Record, ...]]:
    """The record of an id or a file, and all evidence with it."""
    for record in records:
        if record.id == name:
            return record, records
    path = Path(name)
    if not path.is_file():
        raise LoadError(
            f"{name!r} is neither the id of a record nor a file; see mlxcel gate evidence"
        )
    record = load_record(path)
    known = [item for item in records if item.id == record.id]
    if known and known != [record]:
        raise LoadError(f"{path}: the evidence has another record with the id {record.id!r}")
    return record, records if known else (*records, record)


@click.command(context_settings=_HELP, short_help="Add a record to the evidence.")
@click.argument("file", type=_FILE)
@click.option("--dry-run", is_flag=True, help="Show what it would change; copy nothing.")
@_folder_option
@json_option
def submit(file: Path, dry_run: bool, folder: Path | None, as_json: bool) -> None:
    """Add the record in FILE to the evidence, and show what the gate then decides.

    Its figures are worked out again from the raw samples first; a record with one that does
    not follow is refused. A record that is there is never overwritten.
    """
    record, own = load_record(file), _own(folder)
    complaints = verify_record(record)
    if complaints:
        raise LoadError(f"{file} is not added: {'; '.join(complaints)}")
    records, decision = load_records(own), load_decision()
    refuse_known(record, records)
    effect = effect_of(
        record,
        records,
        table=GATE_TABLE,
        decision=decision,
        predictions=load_predictions(own),
    )
    path = None
    if not dry_run:
        path = add_file(folder or PACKAGED, record.id, file.read_text(encoding="utf-8"))
    if as_json:
        write_json(_effect(record, effect, decision, path))
        return
    _tables().show_effect(record, effect, path)


def _effect(
    record: Record, effect: Effect, decision: Decision, path: Path | None
) -> dict[str, Any]:
    return {
        "record": record.id,
        "file": None if path is None else str(path),
        "decided_on": decision.made_on,
        "branch": {"before": effect.branch[0], "after": effect.branch[1]},
        "subjects": [dataclasses.asdict(item) for item in effect.subjects],
        "agrees": not effect.disagreements,
        "disagreements": [dataclasses.asdict(item) for item in effect.disagreements],
        "settled": [dataclasses.asdict(item) for item in effect.settled],
        "opened": [dataclasses.asdict(item) for item in effect.opened],
        "judged": [dataclasses.asdict(item) for item in effect.judged],
    }
