"""From measured cells to a record: figures, fits, and everything it says about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.bench.protocol import Cell
from mlxcel.decide.bench_figures import DERIVED, derive
from mlxcel.decide.bench_sweep import fits_of
from mlxcel.decide.measured_words import exactness_word, protocol_word
from mlxcel.decide.provenance import ExactnessNote, KernelNote, Provenance
from mlxcel.decide.records import (
    MEASURED_SCHEMA_VERSION,
    Host,
    Kind,
    Pairing,
    Record,
    Row,
)
from mlxcel.errors import ConfigError

__all__ = ["Subject", "record_id", "record_of", "row_of", "subject_of"]

# A Gemma assistant reads the target's caches and is an MTP drafter in every published record.
_KINDS: dict[str, Kind] = {
    "mtp": "mtp",
    "assistant": "mtp",
    "lookup": "prompt-lookup",
    "draft": "draft-model",
}
_WORST_FIRST = ("divergent", "unprobed", "token", "bitwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: the pairing, how it is served, and whether it is exact."""

    pairing: Pairing
    kernel: KernelNote
    exactness: ExactnessNote


def subject_of(name: str, drafter: str, facts: Mapping[str, Any]) -> Subject:
    """The subject of a loaded pairing.

    Parameters
    ----------
    name : str
        Of the pairing.
    drafter : str
        What the drafter is called.
    facts : mapping
        See `mlxcel.engine.bench_facts.bench_facts`.

    Raises
    ------
    ConfigError
        Records have no name for this kind of drafter.
    """
    kind = _KINDS.get(facts["drafter_kind"])
    if kind is None:
        raise ConfigError(
            f"a drafter of kind {facts['drafter_kind']!r} has no place in a record; take one of "
            f"{', '.join(_KINDS)}",
            param="drafter",
        )
    found = min(facts["exactness"], key=lambda pair: _WORST_FIRST.index(pair[0]))
    return Subject(
        pairing=Pairing(
            name=name,
            kind=kind,
            target=facts["target"],
            drafter=drafter,
            target_quantization=facts["target_quantization"],
            drafter_quantization=None,
            batch_capable=facts["batch_capable"],
        ),
        kernel=KernelNote(facts["form"], facts["kernel"]),
        exactness=ExactnessNote(*found),
    )


def record_of(
    cells: Sequence[Cell],
    *,
    name: str,
    tool: str,
    tokens: int,
    host: Host,
    subject: Subject,
    provenance: Provenance,
    notes: str | None = None,
) -> Record:
    """The record of a campaign.

    Parameters
    ----------
    cells : sequence of Cell
        At least one.
    name : str
        The record's id, see `record_id`.
    tool : str
        The command.
    tokens : int
        Budget of a run.
    host, subject, provenance
        Where and what was measured.
    notes : str, optional
        What else there is to say.
    """
    rows = tuple(row_of(cell, tokens, provenance.guards) for cell in cells)
    return Record(
        id=name,
        origin="measured",
        address=None,
        date=provenance.day,
        host=host,
        pairing=subject.pairing,
        protocol=protocol_word(provenance),
        tool=tool,
        exactness=exactness_word(provenance, rows),
        round_loop=provenance.round_loop,
        includes=(),
        versions=provenance.versions,
        classic_from=None,
        rows=rows,
        fits=fits_of(rows),
        timings=(),
        notes=notes,
        schema=MEASURED_SCHEMA_VERSION,
        provenance=provenance,
    )


def row_of(cell: Cell, tokens: int, guards: Mapping[str, Any]) -> Row:
    """A cell with its figures."""
    found = derive(cell.raw, requested_width=cell.width, guards=guards)
    return Row(
        prompt=cell.prompt,
        tokens=tokens,
        requested_width=cell.width,
        note=cell.note,
        raw=cell.raw,
        first_difference=cell.first_difference,
        **{name: getattr(found, name) for name in DERIVED},
    )


def record_id(*parts: str) -> str:
    """An id out of any texts: small letters, digits, points and hyphens.

    Raises
    ------
    ConfigError
        Nothing is left of them.
    """
    text = re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")
    if not text:
        raise ConfigError(f"no id can be made of {parts!r}; give one", param="id")
    return text
