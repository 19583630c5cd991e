"""The README of a head: how it was made and what it is worth. Pure text."""

from __future__ import annotations

import importlib.metadata
from typing import Any

__all__ = ["readme", "table"]

STANDARD = ("code", "prose", "enumeration")
PACKAGES = ("mlxcel", "mlx", "mlx-lm", "numpy")


def table(evaluation: dict[str, Any]) -> list[list[str]]:
    """Rows of the table of tokens per verify pass, the header first."""
    widths = [str(width) for width in range(2, 9)]
    lines = [["draft ids", "text", "noise", "tokens", *widths, "first draft"]]
    for name, entry in evaluation.items():
        for label, figures in entry.items():
            if not isinstance(figures, dict):
                continue
            kinds = {"": figures} if "emitted" in figures else figures
            for noise, one in kinds.items():
                if not one.get("emitted"):
                    continue
                shown = label if label in STANDARD else f"T {label}"
                cells = [f"{one['emitted'][width]:.2f}" for width in widths]
                first = f"{one['positions'][0]:.3f}" if one["positions"] else ""
                lines.append([name, shown, noise, str(one["tokens"]), *cells, first])
    return lines


def readme(record: dict[str, Any]) -> str:
    """README.md of a head's folder.

    Parameters
    ----------
    record : dict
        As written to ``evaluation.json``.
    """
    config, training = record["config"], record["config"]["training"]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["seconds"].items())
    lines = table(record["evaluation"])
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    rows.insert(1, "|" + "---|" * len(lines[0]))
    first: dict[str, Any] = next(iter(record["evaluation"].values()), {})
    places = first.get("0.0", {}).get("shared", {}).get("positions", [])
    return "\n".join(
        [
            f"# MTP head for {config['target']['name']}",
            "",
            "Made by `mlxcel distill` from text that the target wrote itself.",
            "",
            f"- command: `{record['command']}`",
            f"- seed {training['seed']}, {training['steps']} steps, "
            f"{training['text_tokens']} tokens of text, time: {seconds}",
            f"- {record['memory']}",
            f"- draft vocabulary {config['draft_vocab_size']} of {config['vocab_size']} ids, which "
            f"cover {100 * training['draft_coverage']:.1f} % of the answers",
            f"- target fingerprint `{config['target']['fingerprint'][:16]}`",
            f"- versions: {versions()}",
            "",
            "Tokens per verify pass by block width (one bonus token and the drafts), on answers",
            "never trained on; T is the temperature. *shared*: the drafter takes the request's own",
            "noise, as decoding does; *independent*: noise of its own, for comparison.",
            "",
            *rows,
            "",
            f"Accepted at each place, greedy, given all before: {places}",
            "",
        ]
    )


def versions() -> str:
    """Installed versions in one line."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
