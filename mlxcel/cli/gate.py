"""``mlxcel gate``: whether bursts pay, on which evidence, on this host or on any other."""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from mlxcel.cli.as_json import json_option, write_json
from mlxcel.config import Settings
from mlxcel.decide.agreement import conflicts, disagreements
from mlxcel.decide.audit import audit as find_weak
from mlxcel.decide.chips import GATE_TABLE, Chip, identify, parse_architecture
from mlxcel.decide.explain import (
    KernelFinding,
    Question,
    batch_capability,
    explain,
    find_pairing,
)
from mlxcel.decide.gate import OVERRIDE
from mlxcel.decide.host_names import host_name
from mlxcel.decide.matrix import decide as derive
from mlxcel.decide.prediction import judge
from mlxcel.decide.readings import Reading, readings, staleness
from mlxcel.decide.records import Record
from mlxcel.evidence import load_decision, load_predictions, load_records

__all__ = ["gate"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_HELP = {"help_option_names": ["-h", "--help"]}


def _folders_option(command: _Command) -> _Command:
    return click.option(
        "--evidence",
        "folders",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Read the records of this folder too; may be repeated.",
    )(command)


def _tables() -> Any:
    """The tables; they need rich, which --help and --json do not."""
    return importlib.import_module("mlxcel.cli.gate_tables")


@click.group(context_settings=_HELP)
def gate() -> None:
    """Say whether bursts of one row pay, and on which evidence.

    Bursts are speculative decoding of a single sequence (B=1). The static gate decides before
    anything was measured on a host; the adaptive policy and the exactness probe add what they
    find there.
    """


@gate.command(context_settings=_HELP)
@click.option("--host", metavar="TEXT", help="Only hosts with this in their name.")
@click.option("--pairing", metavar="TEXT", help="Only pairings with this in their name.")
@click.option(
    "--generation",
    type=click.Choice(sorted(GATE_TABLE), case_sensitive=False),
    help="Only this Apple generation.",
)
@_folders_option
@json_option
def evidence(
    host: str | None,
    pairing: str | None,
    generation: str | None,
    folders: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show every row, marked as measured here or published."""
    records = load_records(folders)
    chosen = [
        record
        for record in records
        if (host or "").casefold() in record.host.chip.casefold()
        and (pairing or "").casefold() in record.pairing.name.casefold()
        and generation in (None, record.host.generation)
    ]
    names = {record.id for record in chosen}
    # Of all records, since a row's classic speed may be in a record that is not shown.
    rows = [reading for reading in readings(records) if reading.record.id in names]
    if as_json:
        write_json([_reading(row) for row in rows])
        return
    _tables().show_evidence(chosen, rows, records)


def _reading(reading: Reading) -> dict[str, Any]:
    """One row without its raw samples, with its record and what follows from it."""
    record, row = reading.record, dataclasses.asdict(reading.row)
    del row["raw"]
    return {
        "record": record.id,
        "origin": record.origin,
        "address": record.address,
        "date": record.date,
        "age": staleness(record),
        "host": dataclasses.asdict(record.host),
        "pairing": {**dataclasses.asdict(record.pairing), "governed": record.pairing.governed},
        "protocol": record.protocol,
        "exactness": record.exactness,
        **row,
        "acceptance": reading.acceptance,
        "classic_tok_s": reading.classic_tok_s,
        "speedup": reading.speedup,
        "round_cost": reading.round_cost,
        "mean_width": reading.mean_width,
    }


@gate.command(context_settings=_HELP)
@_folders_option
@json_option
@click.pass_context
def decide(ctx: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """Show what the evidence says for each generation, and why.

    Which branch of the decision matrix it supports, and conflicts side by side. Exits with
    status 1 when the gate's table or the recorded decision disagrees with the evidence.
    """
    matrix, decision = derive(load_records(folders)), load_decision()
    differences = disagreements(matrix, GATE_TABLE, decision)
    if as_json:
        write_json(
            {
                "branch": dataclasses.asdict(matrix.branch),
                "generations": [dataclasses.asdict(subject) for subject in matrix.subjects],
                "conflicts": [dataclasses.asdict(item) for item in conflicts(matrix)],
                "table": dict(GATE_TABLE),
                "decision": dataclasses.asdict(decision),
                "agrees": not differences,
                "disagreements": [dataclasses.asdict(item) for item in differences],
            }
        )
    else:
        _tables().show_matrix(matrix, decision, differences)
    if differences:
        ctx.exit(1)


@gate.command(context_settings=_HELP)
@_folders_option
@json_option
def audit(folders: tuple[Path, ...], as_json: bool) -> None:
    """List what is weak in the evidence, and what would settle it."""
    findings = find_weak(load_records(folders))
    if as_json:
        write_json([dataclasses.asdict(finding) for finding in findings])
        return
    _tables().show_findings(findings)


@gate.command(context_settings=_HELP)
@_folders_option
@json_option
def predictions(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show by how much predictions held or failed, or are open."""
    records = load_records(folders)
    judged = [(item, judge(item, records)) for item in load_predictions(folders)]
    if as_json:
        write_json(
            [{**dataclasses.asdict(item), **dataclasses.asdict(found)} for item, found in judged]
        )
        return
    _tables().show_predictions(judged)


@gate.command("explain", context_settings=_HELP)
@click.option("--host", metavar="NAME", help='Chip, as "Apple M3 Ultra"; default: this host.')
@click.option("--target", metavar="NAME", help="Target, or a pairing of the evidence.")
@click.option("--drafter", metavar="NAME", help="Its drafter.")
@click.option(
    "--batch-capable/--not-batch-capable",
    "batch_capable",
    default=None,
    help="Whether the target can batch; default: what the evidence says, else that it can.",
)
@click.option(
    "--kernels",
    type=click.Choice(["wide", "narrow"]),
    help="Answer as if the kernel profile had found this.",
)
@click.option(
    "--probe", is_flag=True, help="Take the kernel profile of --target on this host into account."
)
@_folders_option
@json_option
def explain_command(
    host: str | None,
    target: str | None,
    drafter: str | None,
    batch_capable: bool | None,
    kernels: str | None,
    probe: bool,
    folders: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show the gate's decision for any host, step by step."""
    settings, records = Settings.from_env(), load_records(folders)
    profile = KernelFinding(kernels == "wide", "as stated") if kernels else None
    if probe:
        if host is not None or kernels or target is None:
            raise click.UsageError("--probe needs --target, and goes with no --host or --kernels")
        profile = importlib.import_module("mlxcel.cli.gate_host").kernel_finding(target, settings)
    pairing = find_pairing(records, target, drafter) if target else None
    capable, basis = batch_capability(batch_capable, pairing)
    question = Question(
        chip=_chip(host, records),
        batch_capable=capable,
        batch_basis=basis,
        target=target,
        drafter=drafter,
        pairing=pairing,
        # As it was written, for the reason; the settings have checked it.
        env_value=None if settings.enable_mtp_b1 is None else os.environ[OVERRIDE],
        adaptive=settings.mtp_adaptive,
        exactness=settings.mtp_exactness,
        profile=profile,
    )
    found = explain(question, records)
    if as_json:
        write_json(
            {**dataclasses.asdict(found), "chip": dataclasses.asdict(question.chip)},
        )
        return
    _tables().show_explanation(found)


def _chip(host: str | None, records: Sequence[Record]) -> Chip:
    """The chip of a name, or of this host."""
    if host is None:
        found: Chip = importlib.import_module("mlxcel.cli.gate_host").this_chip()
        return found
    name = host_name(host, (record.host.chip for record in records))
    return identify(None, architecture=name) if parse_architecture(name) else identify(name)


@gate.command(context_settings=_HELP)
@json_option
def status(as_json: bool) -> None:
    """Show what the adaptive policy has settled on this host, and what exactness forbids."""
    reading = importlib.import_module("mlxcel.cli.gate_status")
    found = reading.read_status(Settings.from_env(), now=time.time())
    if as_json:
        write_json(found.to_dict())
        return
    importlib.import_module("mlxcel.cli.gate_status_table").show_status(found)
