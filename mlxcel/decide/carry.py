"""Carries a fit of round cost to a host or a pairing that was not measured, as a prediction.

The rule is that of the prediction in the founding document. What is wanted is pairing P on host
H, of which nothing is known but three corners of a square: P on another host G, another
pairing Q on G, and Q on H. Both numbers of the line are then scaled alike::

    a(P, H) = a(P, G) a(Q, H) / a(Q, G)        b(P, H) = b(P, G) b(Q, H) / b(Q, G)

It extrapolates across two things at once, so what comes of it is to be falsified, not believed
(`mlxcel.decide.carried_prediction`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlxcel.decide.fits import Line, fit_line
from mlxcel.decide.readings import Reading, readings
from mlxcel.decide.records import Record
from mlxcel.errors import ConfigError

__all__ = ["Bridge", "Carried", "Widths", "carry", "line_of"]

Widths = Literal["ran", "requested"]

_MIN_WIDTHS = 3


@dataclass(frozen=True, slots=True)
class Bridge:
    """The two records that lead from the source to what is wanted."""

    there: Record
    here: Record

    @property
    def dates(self) -> tuple[str, str]:
        """Days of both, that of the aim first; empty where the source gives none."""
        return self.here.date or "", self.there.date or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A carried line, with the records and lines it was made of.

    Attributes
    ----------
    chip, pairing, kind : str
        What it is about: host, pairing and kind of its drafter.
    line : Line
        Its largest residual is the largest of the three lines.
    source : Record
        Pairing and host it starts from.
    bridge : Bridge
        The other pairing or host, at both ends.
    lines : tuple of Line
        Of the source, and of the bridge there and here.
    """

    chip: str
    pairing: str
    kind: str
    line: Line
    source: Record
    bridge: Bridge
    lines: tuple[Line, Line, Line]


def line_of(record: Record, rows: Iterable[Reading], widths: Widths) -> Line | None:
    """Round cost over width of one record.

    Parameters
    ----------
    record : Record
        The campaign.
    rows : iterable of Reading
        Rows of all records.
    widths : {"ran", "requested"}
        ``ran``: the mean width of the rounds, where acceptance and emitted tokens tell it.
        ``requested``: the width asked for, and the published fit where there is one. Where a
        controller narrowed the rounds, that line has too small a slope.

    Returns
    -------
    Line or None
        ``None`` where no prompt has at least three different widths: several prompts with a
        width each are no sweep.
    """
    if widths == "requested" and record.fits:
        fit = record.fits[0]
        return Line(a=fit.a, b=fit.b, largest_residual=fit.largest_residual, points=0)
    sweeps: dict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for reading in rows:
        if reading.record.id != record.id or reading.fit_cost is None:
            continue
        width = reading.row.requested_width if widths == "requested" else reading.mean_width
        width = reading.row.width if width is None else width
        if width is not None:
            sweeps[reading.row.prompt].append((float(width), reading.fit_cost))
    points = [point for sweep in sweeps.values() if _is_sweep(sweep) for point in sweep]
    return fit_line(points) if points else None


def _is_sweep(points: Sequence[tuple[float, float]]) -> bool:
    return len({round(width, 6) for width, _ in points}) >= _MIN_WIDTHS


def carry(
    records: Sequence[Record],
    source: Record,
    *,
    chip: str | None = None,
    pairing: str | None = None,
    widths: Widths = "ran",
    through: str | None = None,
) -> Carried:
    """Carry the line of a record to another host or another pairing.

    Parameters
    ----------
    records : sequence of Record
        All evidence, the source among it.
    source : Record
        The sweep to start from.
    chip, pairing : str
        What is wanted; one of them, the other stays that of the source.
    widths : {"ran", "requested"}
        See `line_of`.
    through : str, optional
        Pairing (or host, where another pairing is wanted) of the bridge; by default the one
        whose sweeps are the newest.

    Raises
    ------
    ConfigError
        Not exactly one of both is given or it is that of the source, the source has no line,
        or no bridge leads there; names what would.
    """
    aim = _aim(source, chip, pairing)
    rows = readings(records)
    lines = {record.id: line_of(record, rows, widths) for record in records}
    start = lines[source.id]
    if start is None:
        raise ConfigError(
            f"{source.id} has no sweep: a line needs the round cost of at least {_MIN_WIDTHS} "
            "widths; measure one with mlxcel bench width"
        )
    found = [
        item
        for item in _bridges(records, lines)
        if _joins(source, item[0], aim, host=chip is not None)
        if through is None or through.casefold() == _name(item[0], host=chip is not None).casefold()
    ]
    if not found:
        raise ConfigError(_missing(source, aim, through, host=chip is not None))
    bridge, first, second = max(found, key=lambda item: item[0].dates)
    return Carried(
        chip=aim[0],
        pairing=aim[1],
        kind=(source if pairing is None else bridge.here).pairing.kind,
        line=_scaled(start, first, second, bridge),
        source=source,
        bridge=bridge,
        lines=(start, first, second),
    )


def _bridges(
    records: Sequence[Record], lines: Mapping[str, Line | None]
) -> Iterator[tuple[Bridge, Line, Line]]:
    """All pairs of records that both have a line."""
    for there in records:
        for here in records:
            first, second = lines[there.id], lines[here.id]
            if first is not None and second is not None:
                yield Bridge(there, here), first, second


def _aim(source: Record, chip: str | None, pairing: str | None) -> tuple[str, str]:
    """Chip and pairing that are wanted."""
    if (chip is None) == (pairing is None):
        raise ConfigError("a fit is carried to another host or to another pairing: give one")
    aim = (chip or source.host.chip, pairing or source.pairing.name)
    if aim == (source.host.chip, source.pairing.name):
        raise ConfigError(f"{source.id} already is of {aim[1]} on {aim[0]}")
    return aim


def _joins(source: Record, bridge: Bridge, aim: tuple[str, str], *, host: bool) -> bool:
    """Whether two records are the missing corners: there at the source, here at the aim."""
    there, here, (chip, pairing) = bridge.there, bridge.here, aim
    if host:
        return (there.host.chip, here.host.chip) == (source.host.chip, chip) and _subject(
            there
        ) == _subject(here) != _subject(source)
    return (_subject(there), here.pairing.name) == (
        _subject(source),
        pairing,
    ) and there.host.chip == here.host.chip != source.host.chip


def _subject(record: Record) -> tuple[str, str]:
    """A pairing: the same target with another kind of drafter is another one."""
    return record.pairing.name, record.pairing.kind


def _name(bridge: Bridge, *, host: bool) -> str:
    return bridge.here.pairing.name if host else bridge.here.host.chip


def _scaled(start: Line, there: Line, here: Line, bridge: Bridge) -> Line:
    values = (start.a, start.b, there.a, there.b, here.a, here.b)
    if min(values) <= 0:
        told = ", ".join(f"{value:.3f}" for value in values)
        raise ConfigError(
            f"a line through {bridge.there.id} and {bridge.here.id} cannot be scaled: all "
            f"intercepts and slopes must be above 0, got {told}; "
            "name another bridge"
        )
    return Line(
        a=start.a * here.a / there.a,
        b=start.b * here.b / there.b,
        largest_residual=max(line.largest_residual for line in (start, there, here)),
        points=start.points,
    )


def _missing(source: Record, aim: tuple[str, str], through: str | None, *, host: bool) -> str:
    chip, pairing = aim
    said = f" through {through!r}" if through else ""
    if host:
        need = f"another pairing with width sweeps on both {source.host.chip} and {chip}"
    else:
        need = f"another host with width sweeps of both {source.pairing.name} and {pairing}"
    return f"nothing leads from {source.id} to {pairing} on {chip}{said}: it needs {need}"
