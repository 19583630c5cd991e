"""Checks a record's figures and verdicts against its raw samples."""

from __future__ import annotations

from mlxcel.decide.recompute import complaints
from mlxcel.decide.record_json import record_to_dict
from mlxcel.decide.records import Record

__all__ = ["complaints", "verify_record"]


def verify_record(record: Record) -> list[str]:
    """Everything that is wrong with a record; empty for a sound one.

    See `mlxcel.decide.recompute.complaints`, which takes the JSON value of a file, and so also
    finds what an edited file contradicts.
    """
    return complaints(record_to_dict(record), record.id)
