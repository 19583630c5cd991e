"""Predictions of a fit that was carried to a host or pairing which was not measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mlxcel.decide.carry import Carried
from mlxcel.decide.prediction import Prediction, Quantity, QuantityName
from mlxcel.decide.readings import Reading, readings
from mlxcel.decide.records import Record
from mlxcel.errors import ConfigError

__all__ = ["predict"]

_DIGITS = 3  # of predicted figures


def predict(
    carried: Carried,
    records: Sequence[Record],
    *,
    width: int,
    made_on: str,
    by: str,
) -> Prediction:
    """Make a prediction of a carried line.

    Parameters
    ----------
    carried : Carried
        From `carry`.
    records : sequence of Record
        All evidence: tokens per verify come from the pairing's rows of this width elsewhere.
    width : int
        Block width.
    made_on : str
        ISO day; later rows judge it.
    by : str
        Who makes it.

    Raises
    ------
    ConfigError
        The line gives no cost above 0 at the width, or no row tells the emitted tokens.
    """
    cost = round(carried.line.cost(width), _DIGITS)
    slack = round(carried.line.largest_residual, _DIGITS)
    if cost - slack <= 0:
        raise ConfigError(
            f"the carried line gives a round of {cost:.2f} +/- {slack:.2f} classic steps at width "
            f"{width}: it does not reach that far; choose a width inside the sweeps"
        )
    rows = _emitting(carried, readings(records), width)
    emitted = [reading.row.emitted_per_verify or 0.0 for reading in rows]
    least, most = min(emitted), max(emitted)
    span = _span(round(least / cost, _DIGITS), round(most / cost, _DIGITS), "x")
    return Prediction(
        id=_slug(f"{carried.chip} {carried.pairing} block {width} {made_on}"),
        statement=f"A round of block width {width} costs near {cost:.2f} classic steps for "
        f"{carried.pairing} on {carried.chip}, so the burst reaches {span}.",
        made_on=made_on,
        by=by,
        address=f"mlxcel bench predict {carried.source.id}",
        basis=_basis(carried, least, most, sorted({r.record.id for r in rows})),
        chip=carried.chip,
        pairing=carried.pairing,
        width=width,
        prompts=tuple(dict.fromkeys(r.row.prompt for r in rows if r.row.prompt)),
        protocol="guarded",
        quantities=_quantities(cost, slack, least, most),
        settled_by=f"mlxcel bench speculative with {carried.pairing} at width {width} on a host "
        f"with {carried.chip}",
        notes=_known(carried, records, width),
    )


def _quantities(cost: float, slack: float, least: float, most: float) -> tuple[Quantity, ...]:
    basis = f"{slack:.2f} is the largest residual of the three fits"

    def quantity(name: QuantityName, low: float, high: float, tolerance: float) -> Quantity:
        return Quantity(
            name=name,
            low=round(low, _DIGITS),
            high=round(high, _DIGITS),
            tolerance=round(tolerance, _DIGITS),
            tolerance_basis=basis,
        )

    return (
        quantity("round_cost", cost, cost, slack),
        quantity("speedup", least / cost, most / cost, most / (cost - slack) - most / cost),
    )


def _emitting(carried: Carried, rows: Iterable[Reading], width: int) -> list[Reading]:
    """Rows that tell the pairing's tokens per verify, of other hosts than the predicted one."""
    found = [
        reading
        for reading in rows
        if reading.record.pairing.name == carried.pairing
        and reading.record.pairing.kind == carried.kind
        and reading.record.host.chip != carried.chip
        and reading.row.width == width
        and reading.row.emitted_per_verify is not None
    ]
    if not found:
        raise ConfigError(
            f"no row tells how many tokens {carried.pairing} emits per verify at width {width}; "
            "choose a width that was measured"
        )
    return found


def _basis(carried: Carried, least: float, most: float, ids: list[str]) -> str:
    records = (carried.source, carried.bridge.there, carried.bridge.here)
    told = [
        f"{line.a:.2f} + {line.b:.3f} K ({record.id})"
        for record, line in zip(records, carried.lines, strict=True)
    ]
    own = f"{carried.line.a:.2f} + {carried.line.b:.3f} K"
    return (
        f"The fit {told[0]} scaled by {told[2]} over {told[1]} gives {own}; the pairing emits "
        f"{_span(least, most)} tokens per verify ({', '.join(ids)}). It extrapolates across "
        "a pairing and a host at once."
    )


def _span(low: float, high: float, unit: str = "") -> str:
    one, other = f"{low:.2f}{unit}", f"{high:.2f}{unit}"
    return one if one == other else f"{one} to {other}"


def _known(carried: Carried, records: Iterable[Record], width: int) -> str | None:
    """Rows of what is predicted that exist already; they do not judge, but its maker knew them."""
    ids = [
        record.id
        for record in records
        if (record.host.chip, record.pairing.name) == (carried.chip, carried.pairing)
        and any(row.width == width for row in record.rows)
    ]
    return f"Rows that existed when it was made: {', '.join(ids)}." if ids else None


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")
