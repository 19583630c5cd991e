"""Records: strict reading, and values that must agree with each other."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from mlxcel.decide.readings import readings, staleness
from mlxcel.decide.record_json import parse_record, record_to_dict
from mlxcel.decide.records import ROUND_LOOP_VERSION, half_digit
from mlxcel.errors import LoadError
from tests.decide.evidence import campaign, measured, record, row


def full():
    """A record in which every kind of object occurs."""
    cell = row(
        acceptance=0.75,
        accepted=30,
        proposed=40,
        emitted_per_verify=3.25,
        classic_tok_s=20.0,
        speculative_tok_s=40.0,
        speedup=2.0,
        n=3,
        speculative_samples=[39.0, 40.0, 41.0],
    )
    value = campaign(rows=[cell], versions={"mlx": "0.32.4"})
    value["fits"] = [{"a": 1.0, "b": 0.1, "largest_residual": 0.0}]
    value["timings"] = [
        {"stage": "verify", "width": 4, "kernel": "wide", "value": 20.5, "unit": "ms"}
    ]
    return value


OBJECTS = [(), ("host",), ("pairing",), ("rows", 0), ("fits", 0), ("timings", 0)]
FIELDS = [
    (path, name)
    for path in OBJECTS
    for name in (full() if not path else full()[path[0]] if len(path) == 1 else full()[path[0]][0])
]


def at(value, path):
    for key in path:
        value = value[key]
    return value


def test_a_record_survives_the_way_to_json_and_back():
    value = full()
    read = parse_record(value)
    assert record_to_dict(read) == value
    assert parse_record(record_to_dict(read)) == read


@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_every_field_must_be_there(path, name):
    value = full()
    del at(value, path)[name]
    with pytest.raises(LoadError, match=rf"here.*{name}") as caught:
        parse_record(value, "here")
    assert caught.value.param == name


@pytest.mark.parametrize("path", OBJECTS)
def test_no_other_field_may_be_there(path):
    value = full()
    at(value, path)["extra"] = 1
    with pytest.raises(LoadError, match="unknown field extra; remove it"):
        parse_record(value)


def test_a_misspelt_field_is_named():
    value = full()
    value["rows"][0]["speedpu"] = value["rows"][0].pop("speedup")
    with pytest.raises(LoadError, match=r"rows\[0\]: the field 'speedup'.*is 'speedpu' meant"):
        parse_record(value)


@pytest.mark.parametrize(
    ("path", "name", "value", "message"),
    [
        ((), "schema", 3, "schema must be between 1 and 2"),
        ((), "id", "Not An Id", "small letters"),
        ((), "origin", "guessed", "one of measured, published"),
        ((), "address", None, "needs an address"),
        ((), "date", "20.8.2026", "a date as"),
        ((), "date", "2026-02-30", "a date as"),
        ((), "date", "2026", "a date as"),
        ((), "round_loop", 1, "in words"),
        ((), "round_loop", True, "version number"),
        ((), "exactness", "nearly", "one of exact,"),
        ((), "protocol", "", "one of guarded"),
        ((), "includes", "#1", "a list of texts"),
        ((), "versions", {"mlx": 1}, "an object of texts"),
        ((), "rows", {}, "rows must be a list"),
        ((), "host", "Apple M3 Ultra", "must be an object"),
        (("host",), "generation", "M1", "is of generation 'M3'"),
        (("host",), "generation", "M6", "one of M1"),
        (("pairing",), "batch_capable", 1, "true, false or null"),
        (("pairing",), "name", " ", "not empty"),
        (("rows", 0), "acceptance", 1.01, "between 0 and 1"),
        (("rows", 0), "acceptance", float("nan"), "between"),
        (("rows", 0), "acceptance", "0.7", "a number"),
        (("rows", 0), "acceptance", 0.6, "not accepted over proposed = 0.75"),
        (("rows", 0), "accepted", 41, "above proposed"),
        (("rows", 0), "accepted", None, "together or not at all"),
        (("rows", 0), "requested_width", 4.0, "a whole number"),
        (("rows", 0), "requested_width", 3, "between 1 and the width 3"),
        (("rows", 0), "effective_width", 5, "above requested_width 4"),
        (("rows", 0), "effective_width", 3, "between 1 and the width 3"),
        (("rows", 0), "emitted_per_verify", 0.9, "between"),
        (("rows", 0), "emitted_per_verify", 4.1, "between 1 and the width 4"),
        (("rows", 0), "speedup", 2.3, "not speculative 40.0 over classic 20.0 = 2.000"),
        (("rows", 0), "n", 4, "holds 3 samples, but n is 4"),
        (("rows", 0), "speculative_samples", [39.0, 42.0, 43.0], "not the median 42"),
        (("rows", 0), "speculative_samples", [39.0, -1, 43.0], "positive"),
        (("rows", 0), "speculative_samples", [], "a list of numbers or null"),
        (("timings", 0), "unit", "s", "one of ms"),
        (("fits", 0), "a", None, "a number"),
    ],
)
def test_bad_values_are_named_with_their_place(path, name, value, message):
    data = full()
    at(data, path)[name] = value
    with pytest.raises(LoadError, match=message) as caught:
        parse_record(data, "file.json")
    assert str(caught.value).startswith("file.json")


def test_a_bad_row_is_named_by_its_number():
    data = campaign(rows=[1.5, 1.6, row(speedup=-1)])
    with pytest.raises(LoadError, match=r"x\.json: rows\[2\]: speedup"):
        parse_record(data, "x.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round_loop": "main"}, "numbers its loop"),
        ({"round_loop": -1}, "numbers its loop"),
        ({"date": "2026-09"}, "the day it was taken"),
        ({"date": None}, "the day it was taken"),
    ],
)
def test_a_measured_record_needs_loop_and_day(changes, message):
    value = campaign(rows=[2.0], origin="measured", round_loop=1)
    with pytest.raises(LoadError, match=message):
        parse_record(value | changes)


def test_a_record_needs_something_measured():
    with pytest.raises(LoadError, match="at least one row or timing"):
        record(rows=[])


@pytest.mark.parametrize("value", [3, "text", None, [1]])
def test_anything_else_is_no_record(value):
    with pytest.raises(LoadError, match="object with named fields"):
        parse_record(value)


@pytest.mark.parametrize(
    ("value", "half"), [(43.5, 0.05), (3.99, 0.005), (39, 0.5), (0.0, 0.05), (5e-5, 5e-6)]
)
def test_precision_with_which_a_value_is_written(value, half):
    assert half_digit(value) == pytest.approx(half)


@pytest.mark.parametrize(("given", "fine"), [(1.17, True), (1.18, True), (1.16, False)])
def test_a_ratio_may_be_rounded_or_cut(given, fine):
    """68.5 over 58.2 is 1.177."""
    cell = row(classic_tok_s=58.2, speculative_tok_s=68.5, speedup=given)
    if fine:
        assert record(rows=[cell]).rows[0].speedup == given
    else:
        with pytest.raises(LoadError, match=r"1\.177"):
            record(rows=[cell])


def test_records_cannot_be_changed():
    made = record(rows=[2.0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.date = "2026-01-01"


def test_what_follows_from_a_row():
    cell = row(
        emitted_per_verify=3.4, accepted=60, proposed=100, classic_tok_s=20.0, speculative_tok_s=34
    )
    [reading] = readings([record(rows=[cell])])
    assert reading.speedup == pytest.approx(1.7)
    assert reading.round_cost == reading.fit_cost == pytest.approx(2.0)
    assert reading.acceptance == 0.6
    assert reading.mean_width == pytest.approx(5.0)


def test_what_is_not_given_does_not_follow():
    [reading] = readings([record(rows=[row(speculative_tok_s=30.0)])])
    assert (reading.speedup, reading.round_cost, reading.mean_width) == (None, None, None)


def test_classic_speed_of_another_record():
    paired = record("paired", rows=[row(classic_tok_s=20.0), row(prompt="prose")])
    cells = [row(speculative_tok_s=30.0), row(prompt="list", speculative_tok_s=30.0)]
    sweep = record("sweep", rows=cells, classic_from="paired")
    found = {r.row.prompt: r.speedup for r in readings([sweep, paired]) if r.record is sweep}
    assert found == {"code": 1.5, "list": None}


@pytest.mark.parametrize("others", [(), (record("paired", "M5", rows=[2.0]),)])
def test_classic_speed_of_another_host_is_refused(others):
    sweep = record("sweep", "M3", rows=[2.0], classic_from="paired")
    with pytest.raises(LoadError, match="no record of the host 'Apple M3 Ultra'"):
        readings([sweep, *others])


def test_ids_are_unique():
    with pytest.raises(LoadError, match="two records have the id 'a'"):
        readings([record(rows=[2.0]), record(rows=[3.0])])


@pytest.mark.parametrize(
    ("changes", "age"),
    [
        ({"date": "2026-08-19"}, "current"),
        ({"date": "2026-08-18"}, "stale"),
        ({"date": "2026-08"}, "stale"),
        ({"date": "2026-09"}, "current"),
        ({"date": None}, "undated"),
        ({"date": None, "includes": ["#1203"]}, "undated"),
        ({"date": None, "includes": ["#1215"]}, "current"),
    ],
)
def test_age_of_published_records(changes, age):
    made = record(rows=[2.0], **changes)
    assert staleness(made) == age
    assert staleness(made, ROUND_LOOP_VERSION + 1) == age


def test_age_of_measured_records():
    made = measured(3, rows=[2.0])
    assert [staleness(made, version) for version in (2, 3, 4)] == ["current", "current", "stale"]


def test_the_input_is_left_alone():
    value = full()
    before = copy.deepcopy(value)
    parse_record(value)
    assert value == before
