"""In what two measured records differ that must not differ where their figures are compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlxcel.errors import ConfigError

__all__ = ["Mismatch", "cells", "mismatches"]

Value = Mapping[str, Any]
Cell = tuple[str, int, int]

MEMORY_TOLERANCE = 0.02
"""A container or a kernel keeps a little more or less of the same machine's memory."""

_OWN = "mlxcel"
_NO_MATTER = ("MLXCEL_CACHE_DIR",)  # where files lie moves no figure
_ABSENT = "(not there)"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One field of two records, with the value of each as text."""

    field: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.field}: {self.first} against {self.second}"


def cells(record: Value) -> dict[Cell, Value]:
    """Rows of a record by prompt, token budget and requested width."""
    return {(row["prompt"], row["tokens"], row["requested_width"]): row for row in record["rows"]}


def mismatches(first: Value, second: Value, varied: Collection[str] = ()) -> tuple[Mismatch, ...]:
    """Compare what two records were taken with.

    Parameters
    ----------
    first, second : mapping
        JSON values of measured records with provenance, as
        `mlxcel.decide.record_json.record_to_dict` gives them.
    varied : collection of str
        Fields that may differ since the comparison is about them.

    Returns
    -------
    tuple of Mismatch
        Host, memory, system, versions, kernel form, exactness, round loop, pairing, settings,
        and the prompts, token budgets and widths of the rows. Commit and version of mlxcel may
        differ: they are what is compared.

    Raises
    ------
    ConfigError
        A record that cannot be compared at all, or a field in ``varied`` that does not differ.
    """
    for record in (first, second):
        _check(record)
    found = tuple(_found(first, second))
    names = {item.field for item in found}
    for name in varied:
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ConfigError(
                f"the records do not differ in {name!r}; fields that differ: {known}", param="vary"
            )
    return tuple(item for item in found if item.field not in varied)


def _check(record: Value) -> None:
    name = record["id"]
    provenance = record.get("provenance")
    if provenance is None:
        raise ConfigError(
            f"{name} has no provenance: only records measured by mlxcel bench can be compared"
        )
    if provenance["cost_only"] or not record["rows"]:
        raise ConfigError(f"{name} holds times of passes only, no rows of text to compare")


def _found(first: Value, second: Value) -> Iterator[Mismatch]:
    one, two = dict(_facts(first)), dict(_facts(second))
    for name in dict.fromkeys((*one, *two)):
        a, b = one.get(name, _ABSENT), two.get(name, _ABSENT)
        if a != b and not _same_memory(name, a, b):
            yield Mismatch(name, _text(a), _text(b))
    yield from _of_rows(cells(first), cells(second))


def _facts(record: Value) -> Iterator[tuple[str, Any]]:
    """Every fact that must be the same, by the name that people see."""
    provenance = record["provenance"]
    yield "host", record["host"]["chip"]
    yield "memory", provenance["memory_bytes"]
    for name in ("system", "python", "blas", "round_loop"):
        yield name, provenance[name]
    yield "protocol", record["protocol"]
    for name in ("name", "kind", "target", "drafter"):
        yield f"pairing.{name}", record["pairing"][name]
    for name in ("target_quantization", "drafter_quantization"):
        yield f"pairing.{name}", record["pairing"][name]
    kernel, exactness = provenance["kernel"] or {}, provenance["exactness"] or {}
    yield "kernel.form", kernel.get("form", _ABSENT)
    yield "kernel.verdict", kernel.get("verdict", _ABSENT)
    yield "exactness", exactness.get("level", _ABSENT)
    for name, version in provenance["versions"].items():
        if name != _OWN:
            yield f"versions.{name}", version
    for name, value in provenance["environment"].items():
        if name not in _NO_MATTER:
            yield f"environment.{name}", value


def _same_memory(name: str, first: Any, second: Any) -> bool:
    return name == "memory" and abs(first - second) <= MEMORY_TOLERANCE * max(first, second)


def _of_rows(first: Mapping[Cell, Value], second: Mapping[Cell, Value]) -> Iterator[Mismatch]:
    for at, name in enumerate(("prompts", "tokens", "widths")):
        one = sorted({cell[at] for cell in first}, key=str)
        two = sorted({cell[at] for cell in second}, key=str)
        if one != two:
            yield Mismatch(name, ", ".join(map(str, one)), ", ".join(map(str, two)))
            return
    if first.keys() != second.keys():
        yield Mismatch("rows", _only(first, second), _only(second, first))
        return
    for cell, row in first.items():
        ran, other = row["effective_width"], second[cell]["effective_width"]
        if ran != other:
            prompt, tokens, width = cell
            where = f"effective width of {prompt}, {tokens} tokens, width {width}"
            yield Mismatch(where, _text(ran), _text(other))


def _only(these: Mapping[Cell, Value], those: Mapping[Cell, Value]) -> str:
    missing = [f"{p}/{t}/{w}" for p, t, w in these if (p, t, w) not in those]
    return ", ".join(missing) or "nothing more"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
