"""Predictions are records too: made before the rows that judge them, and judged by code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mlxcel.decide._fields import Fields
from mlxcel.decide.fits import implied_emitted
from mlxcel.decide.readings import Reading, readings
from mlxcel.decide.records import Record, half_digit
from mlxcel.errors import LoadError

__all__ = [
    "Judgement",
    "Outcome",
    "Prediction",
    "Quantity",
    "QuantityName",
    "judge",
    "parse_prediction",
    "prediction_to_dict",
]

QuantityName = Literal["speedup", "round_cost"]
Verdict = Literal["held", "failed", "open"]

_NAMES: tuple[QuantityName, ...] = get_args(QuantityName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A predicted range.

    Attributes
    ----------
    name : {"speedup", "round_cost"}
        Speculative over classic speed, or round cost in classic steps.
    low, high : float
        The range as stated; both the same for a single value.
    tolerance : float
        What may be missing on either side, in the quantity's unit.
    tolerance_basis : str or None
        Where the tolerance comes from; needed when it is not 0.
    """

    name: QuantityName
    low: float
    high: float
    tolerance: float
    tolerance_basis: str | None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise LoadError(f"{self.name}: low {self.low} is above high {self.high}")
        if self.tolerance and not self.tolerance_basis:
            raise LoadError(f"{self.name}: a tolerance of {self.tolerance} needs its basis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A statement about rows that did not exist when it was made.

    Attributes
    ----------
    id, statement, made_on, by, address, basis : str
        What was said, when (ISO day; rows of later days judge it), by whom, where, and why.
    chip, pairing : str
        Host and name of the pairing it is about.
    width : int
        Block width it is about.
    prompts : tuple of str
        Prompts it is about; empty for any.
    protocol : str
        Protocol it asks for.
    quantities : tuple of Quantity
        What it predicts, at least one.
    settled_by : str
        What would settle it.
    notes : str or None
        Anything else.
    """

    id: str
    statement: str
    made_on: str
    by: str
    address: str
    basis: str
    chip: str
    pairing: str
    width: int
    prompts: tuple[str, ...]
    protocol: str
    quantities: tuple[Quantity, ...]
    settled_by: str
    notes: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One later row against one predicted range.

    ``off_by`` is 0 inside, negative below and positive above the range, in the quantity's
    unit. ``derived`` tells how the value was worked out where the row does not give it.
    ``caveats`` say in what the row is not what the prediction asked for.
    """

    quantity: QuantityName
    record: str
    date: str
    prompt: str | None
    value: float
    off_by: float
    derived: str | None
    caveats: tuple[str, ...]

    @property
    def within(self) -> bool:
        """Whether the value is inside the range."""
        return self.off_by == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A prediction against all later rows.

    Attributes
    ----------
    verdict : {"held", "failed", "open"}
        Failed when a quantity failed; held when all held; open when one has no row yet.
    firm : bool
        Whether a verdict rests only on rows that are what the prediction asked for.
    by_quantity : tuple of (str, str)
        Verdict of each quantity.
    outcomes : tuple of Outcome
        Every row that judges.
    why : str
        In one sentence.
    """

    prediction: str
    verdict: Verdict
    firm: bool
    by_quantity: tuple[tuple[QuantityName, Verdict], ...]
    outcomes: tuple[Outcome, ...]
    why: str


def parse_prediction(data: object, where: str = "prediction") -> Prediction:
    """Read one prediction.

    Raises
    ------
    LoadError
        A field that is missing, unknown or bad, with its place.
    """
    fields = Fields(data, where)
    prediction = Prediction(
        id=fields.text("id"),
        statement=fields.text("statement"),
        made_on=fields.day("made_on"),
        by=fields.text("by"),
        address=fields.text("address"),
        basis=fields.text("basis"),
        chip=fields.text("chip"),
        pairing=fields.text("pairing"),
        width=fields.whole("width", 1, 1024),
        prompts=fields.texts("prompts"),
        protocol=fields.text("protocol"),
        quantities=tuple(_quantity(item) for item in fields.items("quantities")),
        settled_by=fields.text("settled_by"),
        notes=fields.text_or_none("notes"),
    )
    fields.close()
    if not prediction.quantities:
        raise LoadError(f"{where}: a prediction needs at least one quantity", param="quantities")
    return prediction


def prediction_to_dict(prediction: Prediction) -> dict[str, Any]:
    """The JSON value of a prediction; `parse_prediction` makes an equal one of it."""
    value = asdict(prediction)
    value["prompts"] = list(prediction.prompts)
    value["quantities"] = list(value["quantities"])
    return value


def judge(prediction: Prediction, records: Iterable[Record]) -> Judgement:
    """Judge a prediction by the rows that are later than it.

    A row judges when host, pairing and width are the predicted ones; prompt and protocol may
    differ, which is a caveat. Where a row gives no emitted tokens, round cost is worked out
    from its acceptance as if every round had run at full width.
    """
    outcomes = tuple(
        outcome
        for reading in readings(records)
        for quantity in prediction.quantities
        for outcome in _outcome(prediction, quantity, reading)
    )
    verdicts = tuple((q.name, _verdict(q.name, outcomes)) for q in prediction.quantities)
    found = {verdict for _, verdict in verdicts}
    overall: Verdict = "failed" if "failed" in found else "open" if "open" in found else "held"
    firm = overall != "open" and not any(outcome.caveats for outcome in outcomes)
    return Judgement(
        prediction=prediction.id,
        verdict=overall,
        firm=firm,
        by_quantity=verdicts,
        outcomes=outcomes,
        why=_why(overall, firm, outcomes),
    )


def _quantity(fields: Fields) -> Quantity:
    values = {
        "low": fields.number("low", 0, 1e6),
        "high": fields.number("high", 0, 1e6),
        "tolerance": fields.number("tolerance", 0, 1e6),
    }
    name = fields.word("name", _NAMES)
    basis = fields.text_or_none("tolerance_basis")
    fields.close()
    try:
        return Quantity(name=name, tolerance_basis=basis, **values)
    except LoadError as error:
        raise LoadError(f"{fields.where}: {error.message}", param=name) from None


def _outcome(prediction: Prediction, quantity: Quantity, reading: Reading) -> list[Outcome]:
    """The outcome of one row, or none if it is not about what was predicted."""
    record, row = reading.record, reading.row
    about = (record.host.chip, record.pairing.name, row.width)
    if about != (prediction.chip, prediction.pairing, prediction.width):
        return []
    # A date known to the month only compares as its first day.
    if record.date is None or record.date <= prediction.made_on:
        return []
    value, derived = _value(quantity.name, reading)
    if value is None:
        return []
    caveats = []
    if prediction.prompts and row.prompt not in prediction.prompts:
        caveats.append(f"another prompt ({row.prompt or 'not named'})")
    if record.protocol != prediction.protocol:
        caveats.append(f"protocol {record.protocol}, not {prediction.protocol}")
    if derived:
        caveats.append(derived)
    return [
        Outcome(
            quantity=quantity.name,
            record=record.id,
            date=record.date,
            prompt=row.prompt,
            value=value,
            off_by=_off_by(quantity, value),
            derived=derived,
            caveats=tuple(caveats),
        )
    ]


def _value(name: QuantityName, reading: Reading) -> tuple[float | None, str | None]:
    if name == "speedup":
        return reading.speedup, None
    row = reading.row
    if reading.round_cost is not None or not reading.speedup:
        return reading.round_cost, None
    if reading.acceptance is None or row.width is None:
        return None, None
    emitted = implied_emitted(reading.acceptance, row.width)
    return emitted / reading.speedup, f"emitted {emitted:.3f} worked out from the acceptance"


def _off_by(quantity: Quantity, value: float) -> float:
    """Distance from the range; half of the last printed digit of a bound is no distance."""
    low = quantity.low - quantity.tolerance - half_digit(quantity.low)
    high = quantity.high + quantity.tolerance + half_digit(quantity.high)
    if value < low:
        return value - quantity.low
    return value - quantity.high if value > high else 0.0


def _verdict(name: QuantityName, outcomes: tuple[Outcome, ...]) -> Verdict:
    own = [outcome for outcome in outcomes if outcome.quantity == name]
    if not own:
        return "open"
    return "held" if all(outcome.within for outcome in own) else "failed"


def _why(verdict: Verdict, firm: bool, outcomes: tuple[Outcome, ...]) -> str:
    if not outcomes:
        return "open: no later row is about this host, pairing and width"
    parts = [
        f"{item.quantity.replace('_', ' ')} {item.value:.2f} in {item.record} ({item.date}): "
        + ("inside" if item.within else f"{abs(item.off_by):.2f} " + _side(item.off_by))
        for item in outcomes
    ]
    caveats = dict.fromkeys(caveat for item in outcomes for caveat in item.caveats)
    tail = "" if firm or not caveats else f"; not firm: {'; '.join(caveats)}"
    return f"{verdict}: {'; '.join(parts)}{tail}"


def _side(off_by: float) -> str:
    return "below" if off_by < 0 else "above"
