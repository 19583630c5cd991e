"""Writes the generated pages under docs/; ``--check`` only tells whether they are current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mlxcel.config import environment_table

DOCS = Path(__file__).resolve().parents[1] / "docs"


def environment_page() -> str:
    """The page of all environment variables."""
    return f"""# Environment variables

Generated from `mlxcel/config.py` by `make docs`; do not edit.

An explicit argument outranks the environment, which outranks the default. Booleans are `true`,
`1`, `yes`, `on` or `false`, `0`, `no`, `off` in any case; any other value is an error, and so is
a variable that begins with `MLXCEL_` and is not in this table.

{environment_table()}"""


PAGES = {"environment-variables.md": environment_page}


def main() -> int:
    """Write the pages, or compare them; 1 when one is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"not current, run make docs: {', '.join(stale)}\n")
    return int(bool(check and stale))


if __name__ == "__main__":
    raise SystemExit(main())
