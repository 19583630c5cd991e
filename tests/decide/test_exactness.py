"""Verdicts of the exactness probe from figures alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mlxcel.decide.exactness import (
    MARGIN_FACTOR,
    Draw,
    ExactnessRecord,
    Position,
    judge,
    unprobed,
    veto_of,
)
from mlxcel.errors import LoadError

EQUAL = Position(difference=0.0, margin=0.5, same_choice=True, same_bits=True, scale=20.0)
CLOSE = Position(difference=1e-4, margin=3e-3, same_choice=True, same_bits=False, scale=20.0)
NEAR = replace(CLOSE, margin=CLOSE.difference * MARGIN_FACTOR * 0.99)
FLIPPED = replace(CLOSE, same_choice=False, margin=1e-5)


def draw(*positions: Position, **more: object) -> Draw:
    return Draw(name="draw", start=8, positions=positions, **more)


@pytest.mark.parametrize(
    ("positions", "level", "first"),
    [
        ((EQUAL, EQUAL), "bitwise", None),
        ((EQUAL, CLOSE), "token", None),
        ((EQUAL, NEAR), "divergent", 1),
        ((FLIPPED, EQUAL), "divergent", 0),
        ((EQUAL, replace(CLOSE, difference=float("inf"))), "divergent", 1),
        ((replace(CLOSE, difference=float("nan")),), "divergent", 0),
        ((replace(EQUAL, margin=0.0),), "bitwise", None),  # a tie, but of equal bits
    ],
)
def test_levels(positions: tuple[Position, ...], level: str, first: int | None) -> None:
    record = judge([draw(EQUAL), draw(*positions)], width=4)
    assert (record.level, record.first_position) == (level, first)
    assert bool(record.first_draw) == (level == "divergent")
    json.dumps(record.to_dict(), allow_nan=False)


def test_the_factor_is_inclusive_and_of_one_position() -> None:
    """A small margin elsewhere does not count against a large difference here."""
    at = Position(difference=1.0, margin=MARGIN_FACTOR, same_choice=True, same_bits=False, scale=99)
    tight = Position(difference=1e-6, margin=1e-3, same_choice=True, same_bits=False, scale=99)
    record = judge([draw(at, tight)], width=2)
    assert record.level == "token"
    assert record.smallest_factor == pytest.approx(MARGIN_FACTOR)
    assert (record.largest_difference, record.smallest_margin) == (1.0, 1e-3)


def test_a_fault_diverges_without_a_position() -> None:
    record = judge([draw(EQUAL, fault="2 drafts were accepted, 1 is right")], width=4)
    assert (record.level, record.first_position) == ("divergent", None)
    assert "2 drafts were accepted" in record.reason


def test_other_kernels_by_design_count_only_when_the_difference_is_gross() -> None:
    small, gross = replace(FLIPPED, difference=0.2), replace(FLIPPED, difference=2.0)
    assert judge([draw(EQUAL), draw(small, gross_only=True)], width=4).level == "bitwise"
    record = judge([draw(EQUAL), draw(gross, gross_only=True)], width=4)
    assert (record.level, record.largest_difference) == ("divergent", 0.0)
    broken = replace(FLIPPED, difference=float("nan"))
    assert judge([draw(broken, gross_only=True)], width=4).level == "divergent"


def test_nothing_compared_is_not_a_pass() -> None:
    for draws in ([], [draw()]):
        assert judge(draws, width=4).level == "unprobed"


@pytest.mark.parametrize(
    ("record", "token", "bitwise"),
    [
        (judge([draw(EQUAL)], width=4), False, False),
        (judge([draw(CLOSE)], width=4), False, True),
        (judge([draw(FLIPPED)], width=4), True, True),
        (unprobed(4, "no burst has run yet"), True, True),
    ],
)
def test_vetoes(record: ExactnessRecord, token: bool, bitwise: bool) -> None:
    for required, vetoed in (("token", token), ("bitwise", bitwise), ("off", False)):
        veto = veto_of(record, required)
        assert veto.vetoed is vetoed
        assert bool(veto.reason) is vetoed
        assert veto.record is record


def test_reasons_say_what_was_found() -> None:
    assert veto_of(unprobed(4, "the model keeps X")).reason == "not probed: the model keeps X"
    assert "bitwise equality is required, but all" in veto_of(
        judge([draw(CLOSE)], width=4), "bitwise"
    ).reason
    found = judge([draw(EQUAL, FLIPPED)], width=4).located(3, 0.25)
    reason = veto_of(found).reason
    for part in ("position 1", "another token", "1.0e-04", "1.0e-05", "layer 3", "2.5e-01"):
        assert part in reason
    assert found.layer == 3


def test_records_survive_json_and_damaged_ones_are_refused() -> None:
    for positions in ((EQUAL,), (CLOSE,), (FLIPPED,), (replace(CLOSE, difference=float("inf")),)):
        record = judge([draw(*positions)], width=4, seconds=1.5)
        text = json.dumps(record.to_dict(), allow_nan=False)
        assert ExactnessRecord.from_dict(json.loads(text)) == record
    good = judge([draw(CLOSE)], width=4).to_dict()
    for damage in (
        {"level": "fine"},
        {"level": "unprobed"},
        {"level": "divergent"},
        {"width": 1},
        {"draws": 0},
        {"largest_difference": -1},
        {"reason": ""},
        {"extra": 1},
    ):
        with pytest.raises(LoadError):
            ExactnessRecord.from_dict(good | damage)
    for name in good:
        with pytest.raises(LoadError):
            ExactnessRecord.from_dict({key: good[key] for key in good if key != name})
    with pytest.raises(LoadError):
        ExactnessRecord.from_dict([])


def test_numbers_too_large_for_a_float_are_refused() -> None:
    from mlxcel.decide._fields import Fields
    from mlxcel.errors import LoadError

    for value in (10**400, -(10**400), float("nan"), float("inf")):
        with pytest.raises(LoadError, match="between"):
            Fields({"x": value}, "record").number("x", 0, 1e30)
