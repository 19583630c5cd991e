"""A cost-only record as Markdown: verify by width, parts of a pass, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlxcel.decide.kernels import JUDGED_ROWS, WIDE_LIMIT
from mlxcel.decide.provenance import guard_complaints

__all__ = ["cost_markdown", "costs_table"]


def cost_markdown(record: Mapping[str, Any]) -> str:
    """Write a record for people; everything in it is in the record."""
    cost, figures = record["cost"], record["figures"]
    lines = [
        f"# {record['pairing']['name']} on {record['host']['chip']}: what its passes cost",
        "",
        _sentence(record),
        "",
        _guards(record["provenance"]["guards"]),
        "",
        *_summary(figures),
        "",
        "## Verify by width",
        "",
        "Milliseconds, and in brackets pipelined classic steps of the same form. "
        f"{cost['context']} tokens in the caches, rounds pipelined, medians.",
        "",
        *_widths(record["timings"]),
        "",
        "## Other passes",
        "",
        *_passes(record["timings"]),
        "",
        "## Parts of a pass",
        "",
        _parts_intro(cost),
        "",
        *_parts(record["parts"]),
    ]
    if cost["skipped"]:
        lines += ["", *(f"Not measured: {name}: {why}." for name, why in cost["skipped"].items())]
    lines += ["", f"Sizes: {cost['source']}."]
    return "\n".join(lines) + "\n"


def costs_table(records: Iterable[Mapping[str, Any]]) -> str:
    """All forms of all records in one Markdown table, in pipelined classic steps of the form."""
    rows = []
    for record in records:
        for form in record["figures"]["forms"]:
            line = form["fit_padded"]
            rows.append(
                [
                    record["host"]["chip"],
                    record["pairing"]["name"],
                    form["form"],
                    f"{form['classic_ms']:.2f}",
                    f"{form['verify_steps']:.2f}",
                    str(form["verify_tokens"]),
                    _optional(form["draft_steps"], 3),
                    _optional(form["round_steps"], 2),
                    "" if line is None else f"{line['a']:.2f} {_signed(line['b'])} K",
                    form["bounds"],
                    record["date"],
                    f"`{record['id']}`",
                ]
            )
    head = [
        "host", "sizes of", "form", "classic ms", f"verify of {JUDGED_ROWS}", "fed as", "draft",
        "round", "verify, padded where cheaper", "what bounds it", "date", "record",
    ]  # fmt: skip
    return "\n".join(_table(head, rows)) + "\n"


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _sentence(record: Mapping[str, Any]) -> str:
    cost = record["cost"]
    weights = ", ".join(f"{name} {_size(n)}" for name, n in cost["target_bytes"].items())
    drafter = ""
    if cost["drafter_bytes"]:
        drafter = f", drafter {_size(cost['drafter_bytes'])}"
    versions = ", ".join(f"{name} {text}" for name, text in sorted(record["versions"].items()))
    return (
        f"{record['date']}, {cost['backend']}, {cost['dtype']}, {weights}{drafter}; {versions}. "
        f"{record['notes'][0].upper()}{record['notes'][1:]}."
    )


def _guards(found: Mapping[str, Any]) -> str:
    complaints = guard_complaints(found)
    if not complaints:
        return "Guards: the host was quiet before, and undisturbed all through."
    return f"Guards, to read the figures with care: {'; '.join(complaints)}."


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _summary(figures: Mapping[str, Any]) -> list[str]:
    lines = [f"Serve {figures['serve']}: {figures['reason']}.", ""]
    for form in figures["forms"]:
        fed = form["verify_tokens"]
        padded = f" fed as {fed} rows" if fed != JUDGED_ROWS else ""
        text = (
            f"- **{form['form']}**: classic step {form['classic_ms']:.2f} ms; a verify of "
            f"{JUDGED_ROWS}{padded} costs **{form['verify_steps']:.2f}** classic steps "
            f"({'under' if form['wide'] else 'over'} the {WIDE_LIMIT} of a wide host)"
        )
        if form["draft_steps"] is not None:
            text += f"; one draft {form['draft_steps']:.3f}"
        if form["round_steps"] is not None:
            text += f"; a whole round {form['round_steps']:.2f}"
        lines.append(f"{text}.")
        for name, label in (("fit", "as it is"), ("fit_padded", "padded where cheaper")):
            line = form[name]
            if line is not None:
                lines.append(
                    f"  - {label}: cost(K) = {line['a']:.2f} {_signed(line['b'])} K, largest "
                    f"residual {line['largest_residual']:.2f}"
                )
        lines.append(f"  - what bounds that verify: {form['bounds']}.")
    return lines


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'} {abs(value):.3f}"


def _widths(timings: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [t for t in timings if t["stage"] == "verify" and not t["waited"]]
    widths = sorted({t["width"] for t in found})
    ways = list(dict.fromkeys((t["form"], t["tokens"] > t["width"]) for t in found))
    rows = []
    for form, padded in sorted(ways, key=lambda way: (way[0] != "stored", way[1])):
        mine = [t for t in found if (t["form"], t["tokens"] > t["width"]) == (form, padded)]
        cells = {t["width"]: f"{t['value']:.2f} ({t['steps']:.2f})" for t in mine}
        label = f"{form}, fed as {mine[0]['tokens']}" if padded else form
        rows.append([label, *(cells.get(width, "") for width in widths)])
    return _table(["form", *(str(width) for width in widths)], rows)


def _passes(timings: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            t["stage"],
            t["form"],
            str(t["width"]),
            str(t["tokens"]),
            "waited for" if t["waited"] else "pipelined",
            f"{t['value']:.3f}",
            f"{t['steps']:.3f}",
            f"{t['spread_percent']:.1f}",
            f"{100 * t['host_share']:.0f}",
            str(len(t["seconds"])),
        ]
        for t in timings
        if t["value"] is not None and (t["stage"] != "verify" or t["waited"])
    ]
    head = ["pass", "form", "width", "fed", "how", "ms", "classic steps", "spread %", "host %", "n"]
    return _table(head, rows)


def _parts_intro(cost: Mapping[str, Any]) -> str:
    peak = cost["peak"]
    if peak is None:
        return (
            "Each part of all layers, timed alone. The chip is not in the table of peaks, so no "
            "least times are known; `--bandwidth` and `--tflops` give them."
        )
    return (
        f"Each part of all layers, timed alone. Least time: its bytes at "
        f"{peak['bytes_per_second'] / 1e12:.3g} TB/s or its operations at "
        f"{peak['flops_per_second'] / 1e12:.3g} TFLOP/s, whichever is more ({peak['source']})."
    )


def _parts(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for part in parts:
        least = part["least_milliseconds"]
        rows.append(
            [
                part["form"],
                str(part["tokens"]),
                part["name"],
                f"{part['milliseconds']:.3f}",
                f"{100 * part['share']:.0f}",
                "" if least is None else f"{least:.3f}",
                "" if not least else f"{part['milliseconds'] / least:.1f}",
                part["bound"],
            ]
        )
    head = ["form", "fed", "part", "ms", "share %", "least ms", "times least", "bound by"]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---"] * len(head)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
