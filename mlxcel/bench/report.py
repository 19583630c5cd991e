"""The Markdown report of a measured record: host line, rows, fits, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mlxcel.decide.bench_sweep import WidthSweep, sweeps_of
from mlxcel.decide.records import Record, Row

__all__ = ["HEAD", "against", "host_lines", "markdown", "row_cells"]

HEAD = ("prompt", "K", "ran", "tokens", "acceptance", "emitted per verify", "classic tok/s",
        "speculative tok/s", "speed-up", "95 % interval", "round cost", "spread %", "n",
        "publishable")  # fmt: skip


def markdown(record: Record, plots: Iterable[str] = ()) -> str:
    """The report.

    Parameters
    ----------
    record : Record
        With raw samples.
    plots : iterable of str
        File names of plots, ``…-light.svg`` and ``…-dark.svg`` in pairs.

    Returns
    -------
    str
        Markdown; the figures are those of the record and come from nowhere else.
    """
    parts = [
        f"# {record.pairing.name} on {record.host.chip}",
        "\n".join(f"- {line}" for line in host_lines(record)),
        _table(HEAD, map(row_cells, record.rows)),
    ]
    found = [f"- {line}" for line in against(record)]
    if found:
        parts.append("## Not to be published\n\n" + "\n".join(found))
    sweeps = [sweep for sweep in sweeps_of(record.rows) if sweep.line is not None]
    if sweeps:
        parts.append("## Width\n\n" + "\n\n".join(map(_sweep, sweeps)))
    parts += _pictures(plots)
    parts.append(
        f"Check the figures: `mlxcel bench verify {record.id}.json`. Speeds are medians of tokens "
        "after the first over their wall time; round cost is in classic steps."
    )
    return "\n\n".join(parts) + "\n"


def host_lines(record: Record) -> Iterator[str]:
    """Where it was measured, and with what."""
    yield f"record `{record.id}`, `{record.tool}`, {record.protocol}"
    yield (
        f"{record.pairing.target} with {record.pairing.drafter} ({record.pairing.kind}), "
        f"target {record.pairing.target_quantization or 'not quantized'}"
    )
    found = record.provenance
    if found is None:
        return
    yield f"{found.started}, {found.seconds:.0f} s, round loop {found.round_loop}"
    yield (
        f"{record.host.chip}, {found.memory_bytes / 2**30:.1f} GiB, {found.system}, "
        f"Python {found.python}, {found.blas}"
    )
    yield ", ".join(f"{name} {version}" for name, version in found.versions)
    commit = found.commit or "an installed package"
    yield f"commit {commit}{' with changes' if found.dirty else ''}: `{' '.join(found.command)}`"
    if found.kernel is not None:
        yield f"weights {found.kernel.form}, kernels {found.kernel.verdict or 'not timed'}"
    if found.exactness is not None:
        yield f"exactness {found.exactness.level}: {found.exactness.reason}"
    for name, value in found.environment:
        yield f"`{name}={value}`"
    if record.notes:
        yield record.notes


def against(record: Record) -> list[str]:
    """What speaks against rows, each reason with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for row in record.rows:
        for reason in _reasons(row):
            about.setdefault(reason, []).append(_name(row))
    every = len(record.rows)
    return [
        f"{'every row' if len(names) == every > 1 else '; '.join(names)}: {reason}"
        for reason, names in about.items()
    ]


def _reasons(row: Row) -> list[str]:
    """Why a row is not to be published, the first difference of its answers included."""
    found = list(row.reasons or ())
    if row.first_difference is not None:
        at, margin = row.first_difference.position, row.first_difference.margin
        known = "one answer ends there" if margin is None else f"top-2 margin {margin:.2e}"
        found.append(f"first difference at token {at} ({known})")
    return found


def row_cells(row: Row) -> list[str]:
    """A row as table cells, in the order of `HEAD`."""
    low, high = row.interval or (float("nan"), float("nan"))
    return [
        row.prompt or "",
        str(row.requested_width),
        str(row.effective_width),
        str(row.tokens),
        "" if row.acceptance is None else f"{row.acceptance:.3f}",
        _fixed(row.emitted_per_verify, 3),
        _fixed(row.classic_tok_s, 2),
        _fixed(row.speculative_tok_s, 2),
        f"{_fixed(row.speedup, 3)}x",
        f"{low:.3f} to {high:.3f}",
        _fixed(row.round_cost, 3),
        _fixed(row.spread_percent, 1),
        str(row.n),
        "yes" if row.publishable else "no",
    ]


def _sweep(sweep: WidthSweep) -> str:
    """What a sweep says, in a paragraph."""
    if sweep.line is None:
        raise ValueError("a sweep without a fit has nothing to say")
    line = sweep.line
    even = ", ".join(f"{width}: {cost:.2f}" for width, cost in sweep.break_even.items())
    tied = f" (not told apart from it: {', '.join(map(str, sweep.tied))})" if sweep.tied else ""
    return (
        f"{sweep.prompt}: a round costs {line.a:.2f} + {line.b:.3f} K classic steps, largest "
        f"residual {line.largest_residual:.2f}. To break even a verify must emit, by width, "
        f"{even}. Best width: {sweep.best}{tied}."
    )


def _pictures(plots: Iterable[str]) -> Iterator[str]:
    names = sorted(plots)
    for light in (name for name in names if name.endswith("-light.svg")):
        dark = light.replace("-light.", "-dark.")
        yield (
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img src="{light}" alt="{light.removesuffix("-light.svg")}"></picture>'
        )


def _name(row: Row) -> str:
    return f"{row.prompt}, width {row.requested_width}"


def _fixed(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip
