"""Writes a measured record: JSON, report and plots, side by side in one folder."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from mlxcel.bench.kernel_plot import require_matplotlib
from mlxcel.bench.record_plots import plots_of
from mlxcel.bench.report import markdown
from mlxcel.decide.record_json import record_to_dict
from mlxcel.decide.records import Record, check_id
from mlxcel.errors import ConfigError, LoadError

__all__ = ["prepare_folder", "record_text", "refuse_existing", "write_results"]

_RUN = re.compile(r'\{\s+"arm":[^{}]*\}')


def prepare_folder(folder: Path, name: str | None) -> None:
    """Find out before measuring whether results can be written.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    name : str or None
        Id of the record, if it is known.

    Raises
    ------
    ConfigError
        matplotlib is missing, the name can be no record's, the folder cannot be made or
        written to, or it has a record of that name.
    """
    require_matplotlib()
    if name is not None:
        try:
            check_id(name)
        except LoadError as error:
            raise ConfigError(error.message, param="id") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # what rights say is not all: a file system may be read-only or full
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written to ({error.strerror}); name another folder",
            param="output",
        ) from None
    if name is not None:
        refuse_existing(folder / f"{name}.json")


def write_results(record: Record, folder: Path) -> list[Path]:
    """Write a record with its report and plots.

    Returns
    -------
    list of Path
        The JSON file first, then the report, then the plots.

    Raises
    ------
    ConfigError
        There is a record of that name already: results are never overwritten.
    """
    path = folder / f"{record.id}.json"
    refuse_existing(path)
    # The samples first: whatever else fails, they are kept.
    path.write_text(record_text(record), encoding="utf-8")
    plots = {f"{record.id}-{name}.svg": text for name, text in plots_of(record).items()}
    for name, text in plots.items():
        (folder / name).write_text(text, encoding="utf-8")
    report = folder / f"{record.id}.md"
    report.write_text(markdown(record, plots), encoding="utf-8")
    return [path, report, *(folder / name for name in plots)]


def record_text(record: Record) -> str:
    """JSON of a record, every run on a line of its own."""
    text = json.dumps(record_to_dict(record), indent=1, ensure_ascii=False)
    return _RUN.sub(lambda found: " ".join(found[0].split()), text) + "\n"


def refuse_existing(path: Path) -> None:
    """Refuse to overwrite a record.

    Raises
    ------
    ConfigError
        There is a file of that name.
    """
    if path.exists():
        raise ConfigError(
            f"{path}: is there already; give another --id or --output", param="output"
        )
