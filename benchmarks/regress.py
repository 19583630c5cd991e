"""The regression suite: ratios to a reference kernel, and exact counters, against baselines.

``python -m benchmarks.regress ACTION``, from the checkout:

    run        measure once and print
    baseline   measure in several processes and write the baseline of this host, and the counters
    compare    measure; fail on a regression; what looks slower is measured again before
    counters   count and write `counters.json`, which holds for every host

What fails a comparison, and why: ``docs/regression.md``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import baseline_store as store
from benchmarks.regression import (
    Finding,
    Measurement,
    compare,
    compare_counters,
    differences,
    suspects,
    trouble,
)
from mlxcel.errors import LoadError

ROOT = Path(__file__).parents[1]
RUNS = 3
"""Processes of a baseline, and of what looks slower in a comparison."""

Counters = dict[str, dict[str, int]]


class SuiteError(Exception):
    """The benchmarks did not run to their end."""


class Suite:
    """Runs the benchmarks in fresh processes.

    Parameters
    ----------
    only : str
        Words for pytest's ``-k``; empty for all.
    """

    def __init__(self, only: str) -> None:
        self.only = only
        self.commit: dict[str, Any] = {}

    def run(self, names: Sequence[str] = ()) -> tuple[dict[str, Measurement], Counters]:
        """One process with all benchmarks, or those of some names."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            words = [sys.executable, "-m", "pytest", *(names or ["benchmarks"])]
            words += ["-m", "regression", "--benchmark-disable-gc"]
            words += ["--benchmark-json", str(report)]
            words += ["-k", self.only] if self.only and not names else []
            done = subprocess.run(words, cwd=ROOT, check=False)
            if done.returncode:
                raise SuiteError(
                    f"the benchmarks failed (pytest ended with {done.returncode}); see above"
                )
            data = json.loads(report.read_text(encoding="utf-8"))
        commit = data["commit_info"]
        self.commit = {"commit": commit.get("id"), "dirty": commit.get("dirty")}
        return store.of_pytest(data)

    def runs(
        self, count: int, names: Sequence[str] = ()
    ) -> tuple[dict[str, Measurement], Counters]:
        """Several processes; their runs are put together."""
        measured, counters = self.run(names)
        for _ in range(count - 1):
            again, _ = self.run(list(measured))
            measured = _together(measured, again)
        return measured, counters


def _together(
    first: Mapping[str, Measurement], then: Mapping[str, Measurement]
) -> dict[str, Measurement]:
    return {
        name: each.with_run_of(then[name]) if name in then else each
        for name, each in first.items()
    }


def show(findings: Sequence[Finding]) -> bool:
    """Print findings, what fails last; return whether any does."""
    for each in sorted(findings, key=lambda finding: finding.fails):
        print(f"{each.kind:10s} {each.name}: {each.message}")
    return any(each.fails for each in findings)


def run(suite: Suite, _: argparse.Namespace) -> int:
    """Measure once and print."""
    measured, counters = suite.run()
    for name, each in measured.items():
        middle = sorted(each.seconds[0])[len(each.seconds[0]) // 2]
        note = trouble(each)
        print(f"{each.median:9.4f} {1e3 * middle:9.2f} ms  {name}{f'  ({note})' if note else ''}")
    for name, counted in counters.items():
        print(f"{name}: " + ", ".join(f"{value} {key}" for key, value in counted.items()))
    return 0


def baseline(suite: Suite, args: argparse.Namespace) -> int:
    """Measure in several processes and write; refuse what is too unsteady to be a baseline."""
    here = store.fingerprint()
    measured, counters = suite.runs(args.runs)
    unsteady = _unsteady(measured)
    if unsteady:
        print(f"{len(unsteady)} are unsteady and are measured again")
        measured |= suite.runs(args.runs, list(unsteady))[0]
        unsteady = _unsteady(measured)
    for name, why in unsteady.items():
        print(f"unsteady   {name}: {why}")
    if unsteady and not args.accept_unsteady:
        print("no baseline was written: measure on a quiet machine, or give --accept-unsteady")
        return 1
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = {"at": now, **suite.commit, "unsteady": unsteady}
    old = _same(store.read_baselines(args.folder), here) if suite.only else None
    benchmarks = dict(old.benchmarks if old else {}) | measured
    path = store.write_baseline(
        args.folder, store.Baseline(fingerprint=here, made=made, benchmarks=benchmarks)
    )
    print(f"wrote {path} ({len(measured)} benchmarks x {args.runs} processes)")
    if not suite.only:
        print(f"wrote {store.write_counters(args.folder, counters, _versions(here))}")
    return 0


def _unsteady(measured: Mapping[str, Measurement]) -> dict[str, str]:
    return {name: why for name, each in measured.items() if (why := trouble(each))}


def _same(known: Sequence[store.Baseline], here: Mapping[str, str]) -> store.Baseline | None:
    return next((each for each in known if not differences(each.fingerprint, here)), None)


def count(suite: Suite, args: argparse.Namespace) -> int:
    """Count and write."""
    suite.only = "test_counters"
    _, counters = suite.run()
    print(f"wrote {store.write_counters(args.folder, counters, _versions(store.fingerprint()))}")
    return 0


def check(suite: Suite, args: argparse.Namespace) -> int:
    """Compare with the baselines; 1 where something fails, before measuring if nothing fits."""
    here = store.fingerprint()
    known = store.read_baselines(args.folder)
    found = _same(known, here)
    if found is None:
        print(_why_none(known, here))
        return 1
    wanted, versions = store.read_counters(args.folder)
    measured, counters = suite.run()
    before = dict(found.benchmarks)
    if suite.only:  # then only what ran can be missing
        before = {name: each for name, each in before.items() if suite.only in name}
        wanted = {name: each for name, each in wanted.items() if name in counters}
    findings = _confirmed(suite, before, measured, args.runs)
    findings += compare_counters(wanted, counters)
    for line in differences(versions, _versions(here)):
        print(f"counters   {line}")
    failed = show(findings)
    checked = f"{len(before)} benchmarks and the counters of {len(wanted)} cases"
    print("FAILED" if failed else f"no regression in {checked}")
    return int(failed)


def _confirmed(
    suite: Suite, before: Mapping[str, Measurement], measured: dict[str, Measurement], runs: int
) -> list[Finding]:
    """Findings after what looks slower has been measured in other processes as well."""
    again = suspects(compare(before, measured))
    if again:
        print(f"{len(again)} look slower and are measured in {runs - 1} more processes")
        for _ in range(runs - 1):
            measured = _together(measured, suite.run(again)[0])
    return compare(before, measured)


def _why_none(known: Sequence[store.Baseline], here: Mapping[str, str]) -> str:
    """Why there is no baseline to compare with, and how to make one."""
    if not known:
        return "no baseline yet: make one at a quiet time with make bench-baseline"
    nearest = min((differences(each.fingerprint, here) for each in known), key=len)
    lines = "\n".join(f"  {line}" for line in nearest)
    return (
        "no baseline for this host and these versions; the nearest one differs in\n"
        f"{lines}\n"
        "check out the commit to compare with, make bench-baseline there at a quiet time, and "
        "come back with its file"
    )


def _versions(here: Mapping[str, str]) -> dict[str, str]:
    return {name: here[name] for name in ("mlx", "mlx-lm")}


ACTIONS = {"run": run, "baseline": baseline, "compare": check, "counters": count}


def main() -> int:
    """Parse arguments and do what is asked; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--only", default="", help="part of the names of benchmarks")
    parser.add_argument("--runs", type=int, default=RUNS, help="processes (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=store.FOLDER, help="where baselines lie")
    parser.add_argument(
        "--accept-unsteady", action="store_true", help="write a baseline with unsteady benchmarks"
    )
    args = parser.parse_args()
    try:
        return ACTIONS[args.action](Suite(args.only), args)
    except (SuiteError, LoadError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
