"""Baselines as files: one of ratios per fingerprint, and one of counters for all hosts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.regression import Measurement
from mlxcel._fast import buildinfo
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.errors import LoadError

__all__ = [
    "COUNTERS",
    "FOLDER",
    "Baseline",
    "fingerprint",
    "of_pytest",
    "read_baselines",
    "read_counters",
    "write_baseline",
    "write_counters",
]

FOLDER = Path(__file__).parent / "baselines"
COUNTERS = "counters.json"
SCHEMA = 1
DIGITS = 6
"""Significant digits that are kept of times and ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What was measured on one host.

    Attributes
    ----------
    fingerprint : mapping of str to str
        Of the host and of what ran; only a run with the same one may be compared.
    made : mapping of str to object
        When, at which commit.
    benchmarks : mapping of str to Measurement
        By name.
    """

    fingerprint: Mapping[str, str]
    made: Mapping[str, Any]
    benchmarks: Mapping[str, Measurement]


def fingerprint() -> dict[str, str]:
    """Whatever moves ratios, of this process's host. Imports MLX."""
    from mlxcel.hardware.host import describe  # late: reading files needs no MLX

    host = describe()
    build = "checked" if buildinfo.CHECKED else "optimized" if buildinfo.OPTIMIZED else "plain"
    return {
        "backend": host.backend,
        "chip": host.chip,
        "cores": str(host.cores),
        "blas": host.blas.name,
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "python": host.python,
        "mlx": str(host.versions["mlx"]),
        "mlx-lm": str(host.versions["mlx-lm"]),
        "numpy": str(host.versions["numpy"]),
        "compiled modules": f"{build}, Cython {buildinfo.CYTHON_VERSION}",
        "round loop": str(ROUND_LOOP_VERSION),
    }


def of_pytest(
    report: Mapping[str, Any],
) -> tuple[dict[str, Measurement], dict[str, dict[str, int]]]:
    """Ratios and counters in a report of pytest-benchmark, by name.

    Parameters
    ----------
    report : mapping
        What ``--benchmark-json`` wrote in one process. Benchmarks without a reference are left
        out.
    """
    measured: dict[str, Measurement] = {}
    counted: dict[str, dict[str, int]] = {}
    for each in report["benchmarks"]:
        extra = each["extra_info"]
        if "ratios" in extra:
            measured[each["fullname"]] = Measurement(
                reference=extra["reference"],
                seconds=[extra["seconds"]],
                ratios=[extra["ratios"]],
            )
        elif "counters" in extra:
            counted[each["param"]] = extra["counters"]
    return measured, counted


def write_baseline(folder: Path, baseline: Baseline) -> Path:
    """Write a baseline, in place of an older one of the same fingerprint."""
    chip = re.sub(r"[^a-z0-9]+", "-", baseline.fingerprint["chip"].lower()).strip("-")
    digest = hashlib.sha256(_text(dict(baseline.fingerprint)).encode()).hexdigest()[:8]
    path = folder / f"{chip}-{baseline.fingerprint['cores']}-cores-{digest}.json"
    rows = {
        name: {
            "reference": each.reference,
            "seconds": _rounded(each.seconds),
            "ratios": _rounded(each.ratios),
        }
        for name, each in baseline.benchmarks.items()
    }
    lines = ",\n".join(f"  {_text(name)}: {_text(row)}" for name, row in rows.items())
    head = {
        "schema": SCHEMA, "fingerprint": dict(baseline.fingerprint), "made": dict(baseline.made)
    }  # fmt: skip
    start = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    _write(path, f'{start},\n "benchmarks": {{\n{lines}\n }}\n}}\n')
    return path


def read_baselines(folder: Path) -> list[Baseline]:
    """All baselines of ratios in a folder, by file name.

    Raises
    ------
    LoadError
        A file that is none; it is named.
    """
    return [_read(path) for path in sorted(folder.glob("*.json")) if path.name != COUNTERS]


def _read(path: Path) -> Baseline:
    data = _json(path)
    try:
        return Baseline(
            fingerprint=dict(data["fingerprint"]),
            made=dict(data["made"]),
            benchmarks={
                name: Measurement(
                    reference=str(row["reference"]), seconds=row["seconds"], ratios=row["ratios"]
                )
                for name, row in data["benchmarks"].items()
            },
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LoadError(
            f"{path}: no baseline ({error!r}); write it again with make bench-baseline"
        ) from error


def write_counters(
    folder: Path, counters: Mapping[str, Mapping[str, int]], versions: Mapping[str, str]
) -> Path:
    """Write the counters of all cases, and the versions of what builds the graphs."""
    path = folder / COUNTERS
    lines = ",\n".join(f"  {_text(name)}: {_text(dict(row))}" for name, row in counters.items())
    start = f'{{\n "schema": {SCHEMA},\n "versions": {_text(dict(versions))},\n'
    _write(path, f'{start} "cases": {{\n{lines}\n }}\n}}\n')
    return path


def read_counters(folder: Path) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Counters by case, and the versions they were counted with.

    Raises
    ------
    LoadError
        The file is missing or damaged.
    """
    data = _json(folder / COUNTERS)
    try:
        return data["cases"], data["versions"]
    except KeyError as error:
        raise LoadError(
            f"{folder / COUNTERS}: no counters ({error!r}); make bench-counters"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise LoadError(f"{path}: not of schema {SCHEMA}; write it again with make bench-baseline")
    return data


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(runs: Any) -> list[list[float]]:
    return [[float(f"{value:.{DIGITS}g}") for value in run] for run in runs]
