"""Kept results of the exactness probe, read for people, and which verdicts they judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxcel.decide.exactness import ExactnessRecord
from mlxcel.decide.verdict import VerdictKey, parse_json
from mlxcel.errors import LoadError

__all__ = ["Probed", "Subject", "read_probed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a probe was about: everything of a verdict's key but drafter and versions.

    The drafter cannot change what a probe finds; versions are part of the host's digest.
    """

    target: str
    host: str
    width: int
    weights: str
    numerics: str
    round_loop: int

    @classmethod
    def of(cls, key: VerdictKey) -> Subject:
        """The subject of the probe that judges a verdict."""
        return cls(
            target=key.target,
            host=key.host,
            width=key.width,
            weights=key.weights,
            numerics=key.numerics,
            round_loop=key.round_loop,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One kept result.

    Attributes
    ----------
    subject : Subject
        What was probed.
    sizes : tuple of int
        Cache sizes it was probed with.
    target : str or None
        What people call the target.
    record : ExactnessRecord
        What was found.
    """

    subject: Subject
    sizes: tuple[int, ...]
    target: str | None
    record: ExactnessRecord


def read_probed(
    text: str, *, version: int, digest: Callable[[Mapping[str, Any]], str], name_field: str
) -> Probed | None:
    """Read one file of the exactness probe.

    Parameters
    ----------
    text : str
        Its content.
    version : int
        Current version of the probe.
    digest : callable
        Turns the facts of a host into its fingerprint.
    name_field : str
        Field of the record with the target's name.

    Returns
    -------
    Probed or None
        ``None`` for another version, which is probed again.

    Raises
    ------
    LoadError
        Nothing that can be used; the message says why.
    """
    data = parse_json(text, "exactness record")
    if not isinstance(data, Mapping):
        raise LoadError("exactness record: not an object: delete it")
    found = data.get("version")
    if isinstance(found, int) and found != version:
        return None
    key, record = data.get("key"), data.get("record")
    if not isinstance(key, Mapping) or not isinstance(record, Mapping):
        raise LoadError("exactness record: key or record is missing: delete it")
    fields = dict(record)
    name = fields.pop(name_field, None)
    try:
        form, dtype = key["weights"]
        subject = Subject(
            target=key["target"],
            host=digest(key["host"]),
            width=key["width"],
            weights=f"{form} {dtype}" + (f" lean {key['lean']}" if key["lean"] else ""),
            numerics=key["numerics"],
            round_loop=key["round_loop"],
        )
        sizes = tuple(key["sizes"])
        hash((subject, sizes))  # they are looked up by it
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"exactness record: its key is incomplete ({error!r}): delete it"
        ) from error
    return Probed(
        subject=subject,
        sizes=sizes,
        target=name if isinstance(name, str) else None,
        record=ExactnessRecord.from_dict(fields),
    )
