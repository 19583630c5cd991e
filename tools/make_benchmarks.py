"""Writes docs/benchmarks.md and its plots from the evidence.

``--check`` only tells whether they are current. Plots need matplotlib and are left alone without.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mlxcel.bench.cost_report import costs_table
from mlxcel.bench.plots import THEMES, Sweep, SweepPoint, same_plot, sweep_svg
from mlxcel.decide.audit import audit
from mlxcel.decide.fits import Line, fit_line
from mlxcel.decide.matrix import Matrix, decide
from mlxcel.decide.prediction import judge
from mlxcel.decide.readings import Reading, readings, staleness
from mlxcel.decide.records import Origin, Record, Row
from mlxcel.evidence import load_cost_records, load_predictions, load_records

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
PLOTS = PAGE.parent / "plots"

HEAD = """# Benchmarks

Generated from `mlxcel/evidence/` by `tools/make_benchmarks.py`; do not edit.

Speeds are tokens per second, medians. Speed-up is speculative over classic speed. Round cost is in
classic steps: emitted tokens per verify over speed-up, so speculation wins when a verify emits more
than a round costs. Spread is (max - min) over median. Width is the block width K: what was asked
for, an arrow and what ran where that is known too. An empty cell is a value that the source does
not give. Exactness: `exact` and `exact-narrow` give what single steps give, byte for byte;
`inexact-wide` is the fast kernel that does not; `unknown` is not said.
"""

RESULT_HEAD = (
    "host", "prompt", "width", "acceptance", "emitted per verify", "classic", "speculative",
    "speed-up", "round cost", "spread %", "n", "exactness", "date", "origin", "record",
)  # fmt: skip


def cell(value: object) -> str:
    """Text of a table cell."""
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def fixed(value: float | None, digits: int) -> str:
    """A number with so many digits, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


UNCOUNTED = (
    "Records before 1 December 2026 counted drafts only up to the first that did not hold; their "
    "acceptance is\nleft out, for it is not accepted over proposed.\n\n"
)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def width_text(reading: Reading) -> str:
    """Width asked for and width that ran."""
    asked, ran = reading.row.requested_width, reading.row.effective_width
    if ran is None:
        return cell(asked)
    return f"ran {ran}" if asked is None else f"{asked} → {ran}"


def against(row: Row) -> str:
    """Why a row is not to be published, if it is not."""
    return f"; not to be published: {'; '.join(row.reasons)}" if row.reasons else ""


def result_row(reading: Reading) -> list[object]:
    """One row of a table of results."""
    record, row = reading.record, reading.row
    return [
        record.host.chip,
        row.prompt,
        width_text(reading),
        fixed(reading.acceptance, 3),
        fixed(row.emitted_per_verify, 3),
        reading.classic_tok_s,
        row.speculative_tok_s,
        f"{reading.speedup:.2f}x" if reading.speedup is not None else None,
        fixed(reading.round_cost, 2),
        row.spread_percent,
        row.n,
        record.exactness,
        record.date,
        record.origin,
        f"`{record.id}`" + (f" ({row.note})" if row.note else "") + against(row),
    ]


def results(every: Sequence[Reading], origin: Origin) -> str:
    """All rows of one origin, a table per pairing, governed pairings first."""
    own = [reading for reading in every if reading.record.origin == origin]
    if not own:
        return "No record yet.\n"
    parts = []
    names = {(not r.record.pairing.governed, r.record.pairing.name) for r in own}
    for other, name in sorted(names):
        rows = [r for r in own if r.record.pairing.name == name]
        ruled = "the gate does not decide for it" if other else "governed by the gate"
        body = table(RESULT_HEAD, map(result_row, rows))
        parts.append(f"### {name} ({ruled})\n\n{body}\n")
    return "\n".join(parts)


def verdicts(matrix: Matrix) -> str:
    """The decision matrix."""
    says = {True: "on", False: "off", None: "undecided"}
    rows = [
        [
            subject.name,
            subject.verdict,
            says[subject.supports],
            subject.why,
            ", ".join(f"`{name}` ({date or 'undated'})" for name, date in subject.evidence),
        ]
        for subject in matrix.subjects
    ]
    head = ("generation", "evidence", "default", "because", "records")
    return f"Branch: **{matrix.branch.name}**. {matrix.branch.why}\n\n{table(head, rows)}\n"


def line_text(line: Line | None) -> str:
    """A fit and its largest residual."""
    if line is None:
        return ""
    return f"{line.a:.2f} + {line.b:.3f} K, {line.largest_residual:.2f}"


def fitted(points: Sequence[tuple[float | None, float | None]]) -> Line | None:
    """The line through the known points, where there are three at least."""
    known = [(x, y) for x, y in points if x is not None and y is not None]
    return fit_line(known) if len({x for x, _ in known}) >= 3 else None


def fits(every: Sequence[Reading], records: Iterable[Record]) -> str:
    """Round cost over width, as published and as worked out from the rows."""
    rows = []
    for record in records:
        own = [reading for reading in every if reading.record.id == record.id]
        stated = fitted([(reading.row.width, reading.fit_cost) for reading in own])
        if stated is None:
            continue
        run = fitted([(reading.mean_width, reading.fit_cost) for reading in own])
        published = [f"{f.a:g} + {f.b:g} K, {f.largest_residual:g}" for f in record.fits]
        rows.append(
            [
                record.host.chip,
                record.pairing.name,
                "; ".join(published),
                line_text(stated),
                line_text(run),
                record.origin,
                f"`{record.id}`",
            ]
        )
    head = ("host", "pairing", "as published", "over stated width", "over mean width", "origin",
            "record")  # fmt: skip
    return table(head, rows) + "\n"


def sweeps(every: Sequence[Reading], records: Iterable[Record]) -> dict[str, Sweep]:
    """What is plotted, by record: every campaign with three widths or more."""
    found = {}
    for record in records:
        own = [reading for reading in every if reading.record.id == record.id]
        points = tuple(
            SweepPoint(reading.row.width, reading.fit_cost, reading.mean_width)
            for reading in own
            if reading.row.width is not None and reading.fit_cost is not None
        )
        if len({point.width for point in points}) < 3:
            continue
        prompts = ", ".join(dict.fromkeys(r.row.prompt or "not named" for r in own))
        where = f"{record.origin} {record.date or 'undated'}, {record.exactness}"
        found[record.id] = Sweep(
            title=f"{record.host.chip}, {record.pairing.name}",
            subtitle=f"{where}, prompt {prompts} ({record.id})",
            points=points,
        )
    return found


def pictures(found: dict[str, Sweep]) -> str:
    """The plots, for light and dark pages."""
    return "\n".join(
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="plots/{name}-dark.svg">\n'
        f'<img alt="{html.escape(sweep.describe())}" src="plots/{name}-light.svg"></picture>\n'
        for name, sweep in found.items()
    )


def plot_files(found: dict[str, Sweep]) -> dict[Path, str]:
    """Text of every plot; none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
    return {
        PLOTS / f"{name}-{theme}.svg": sweep_svg(sweep, theme)
        for name, sweep in found.items()
        for theme in THEMES
    }


def timings(records: Iterable[Record]) -> str:
    """Times of the stages of a round."""
    rows = [
        [r.host.chip, r.pairing.name, t.stage, t.width, t.kernel, t.value, t.unit, r.date, r.origin,
         f"`{r.id}`"]
        for r in records
        for t in r.timings
    ]  # fmt: skip
    head = ("host", "pairing", "stage", "width", "kernel", "value", "unit", "date", "origin",
            "record")  # fmt: skip
    return table(head, rows) + "\n"


def predictions(records: Sequence[Record]) -> str:
    """Every prediction with its judgement."""
    parts = []
    for item in load_predictions():
        judged = judge(item, records)
        each = ", ".join(f"{name.replace('_', ' ')} {was}" for name, was in judged.by_quantity)
        parts.append(
            f"**`{item.id}`** ({item.by}, {item.made_on}, {item.address}): {item.statement}\n\n"
            f"{each[0].upper()}{each[1:]}. As a whole {judged.why}.\n\n"
            f"To settle it: {item.settled_by}.\n"
        )
    return "\n".join(parts)


def sources(records: Iterable[Record]) -> str:
    """Where every record comes from."""
    rows = [
        [f"`{r.id}`", r.origin, r.address, f"{r.pairing.target} + {r.pairing.drafter}", r.protocol,
         r.tool, f"{r.round_loop} ({staleness(r)})", r.notes]
        for r in records
    ]  # fmt: skip
    head = ("record", "origin", "address", "checkpoints", "protocol", "tool", "round loop", "notes")
    return table(head, rows) + "\n"


def page() -> str:
    """The whole page."""
    records = load_records()
    every = readings(records)
    findings = table(
        ("kind", "subject", "found", "to settle it", "records"),
        ([f.kind, f.subject, f.message, f.settle, ", ".join(f.evidence)] for f in audit(records)),
    )
    costs = load_cost_records()
    measured_costs = (
        "Costs with made-up weights",
        "Models of the published sizes, without a checkpoint ([cost.md](cost.md)): costs only, in "
        "pipelined classic steps\nof the same form.\n\n" + costs_table(costs),
    )
    sections = (
        ("What the evidence says", verdicts(decide(records))),
        ("Measured here", UNCOUNTED + results(every, "measured")),
        *([measured_costs] if costs else []),
        ("Published elsewhere", results(every, "published")),
        (
            "Round cost over width",
            "`cost = a + b K` with its largest residual. The mean width is what acceptance and "
            "emitted tokens imply;\nwhere it is below the stated width, rounds ran narrower than "
            "the row says.\n\n" + fits(every, records) + "\n" + pictures(sweeps(every, records)),
        ),
        ("Times of the stages", timings(records)),
        ("Predictions", predictions(records)),
        ("What is weak", findings + "\n"),
        ("Sources", sources(records)),
    )
    return HEAD + "".join(f"\n## {title}\n\n{body}" for title, body in sections)


def main() -> int:
    """Write page and plots, or compare them; 1 when one is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    records = load_records()
    drawn = plot_files(sweeps(readings(records), records))
    stale = [path for path, text in drawn.items() if not same(path, text, same_plot)]
    if drawn:
        stale += sorted(set(PLOTS.glob("*.svg")) - drawn.keys())
    text = page()
    if not same(PAGE, text, str.__eq__):
        stale.append(PAGE)
    if check and stale:
        names = ", ".join(path.name for path in stale)
        sys.stderr.write(f"not current, run tools/make_benchmarks.py: {names}\n")
    if not check:
        write({PAGE: text, **drawn}, stale)
    return int(bool(check and stale))


def same(path: Path, text: str, equal: Callable[[str, str], bool]) -> bool:
    """Whether a file is there and holds a text."""
    return path.exists() and equal(path.read_text(encoding="utf-8"), text)


def write(files: dict[Path, str], stale: Iterable[Path]) -> None:
    """Write what is not current, and remove plots that are no more."""
    PLOTS.mkdir(exist_ok=True)
    for path in stale:
        if path in files:
            path.write_text(files[path], encoding="utf-8")
        else:
            path.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
