"""Schema 2: the way to JSON and back, and that no figure can be edited unnoticed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from mlxcel.bench.protocol import Plan
from mlxcel.bench.verify import verify_record
from mlxcel.decide.bench_figures import DERIVED
from mlxcel.decide.recompute import complaints
from mlxcel.decide.record_json import parse_record, record_to_dict
from mlxcel.errors import LoadError
from mlxcel.evidence import record_schema
from tests.decide.evidence import campaign as published
from tests.evidence.schema_check import faults
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import measured_record

WHOLE = record_to_dict(
    measured_record(SimulatedHost(noise=0.003), Plan(prompts={"a": "a"}, widths=(2, 3, 4)))
)
RUN = ("rows", 0, "raw", "pairs", 0, 1)
PLACES = [("provenance",), ("rows", 0), ("rows", 0, "raw"), RUN,
          ("provenance", "kernel"), ("provenance", "exactness")]  # fmt: skip


def at(value, path):
    for key in path:
        value = value[key]
    return value


def edited(path, value):
    data = copy.deepcopy(WHOLE)
    at(data, path[:-1])[path[-1]] = value
    return data


def test_a_measured_record_is_sound_and_survives_the_way_to_json():
    data = json.loads(json.dumps(WHOLE))
    assert data["schema"] == 2
    assert complaints(data) == []
    assert list(faults(data, record_schema())) == []
    record = parse_record(data)
    assert record_to_dict(record) == WHOLE
    assert parse_record(record_to_dict(record)) == record
    assert verify_record(record) == []


def other(value):
    """Something else of the same type, near enough to look right."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return float(f"{value * 1.0001:.6g}")
    if isinstance(value, list):
        return [*map(other, value)] or ["it was a bad day"]
    return value + "x"


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", DERIVED)
def test_an_edited_figure_is_named_with_both_values(number, name):
    stored = WHOLE["rows"][number][name]
    data = edited(("rows", number, name), other(stored))
    found = [line for line in complaints(data, "file.json") if "by the raw samples" in line]
    [line] = [each for each in found if f"): {name} is " in each]
    assert line.startswith(f"file.json: rows[{number}] (a, width {number + 2}): ")
    assert repr(other(stored)) in line
    assert f"but {stored!r} by the raw samples" in line


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("fits", 0, "b"), 0.2),
        (("fits",), []),
        (("protocol",), "unguarded"),
        (("exactness",), "unknown"),
        (("host", "memory_gb"), 64.0),
        (("date",), "2026-12-01"),
        (("round_loop",), 2),
        (("versions", "mlx"), "0.33.0"),
        (("rows", 0, "tokens"), 256),
        (("rows", 0, "requested_width"), 3),
        (("rows", 0, "first_difference"), {"position": 3, "margin": 0.1}),
        ((*RUN, "seconds"), 1.0),
        ((*RUN, "ids_sha256"), "0" * 64),
        (("provenance", "guards", "contention", "passed"), False),
        (("provenance", "exactness", "level"), "divergent"),
    ],
)
def test_other_edits_are_found_too(path, value):
    assert complaints(edited(path, value))


def test_true_is_not_one():
    assert WHOLE["rows"][0]["publishable"] is True
    assert complaints(edited(("rows", 0, "publishable"), 1))


def test_a_record_that_cannot_be_read_says_why():
    assert complaints([]) == ["record must be an object with named fields, got []"]
    data = edited(("provenance", "started"), "yesterday")
    [line] = complaints(data, "file.json")
    assert "file.json: provenance: started 'yesterday' must be UTC" in line


def test_a_published_record_is_checked_for_its_form():
    assert complaints(published(rows=[2.0])) == []
    [line] = complaints(published(rows=[-2.0]))
    assert "speedup must be between" in line


@pytest.mark.parametrize("place", PLACES)
def test_schema_and_parser_know_the_same_fields(place):
    for name in at(WHOLE, place):
        data = copy.deepcopy(WHOLE)
        inner = at(data, place)
        value = inner.pop(name)
        assert list(faults(data, record_schema())), name
        with pytest.raises(LoadError):
            parse_record(data)
        inner[name] = value
        inner[f"{name}2"] = None
        assert len(list(faults(data, record_schema()))) == 1, name
        with pytest.raises(LoadError, match="unknown field"):
            parse_record(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("provenance", "commit"), "A" * 40),
        (("provenance", "memory_bytes"), 0),
        (("provenance", "cost_only"), None),
        (("provenance", "started"), "2026-11-30"),
        (("provenance", "guards"), {"quiet": {}}),
        (("provenance", "exactness", "level"), "nearly"),
        (("rows", 0, "interval"), [1.0]),
        (("rows", 0, "reasons"), [1]),
        (("rows", 0, "raw", "null"), []),
        (("rows", 0, "first_difference"), {"position": -1, "margin": None}),
        ((*RUN, "arm"), "mtp"),
        ((*RUN, "seconds"), 0),
        ((*RUN, "width_max"), 0),
        ((*RUN, "accepted_by_position"), [1.5]),
        ((*RUN, "profiling"), 0),
        (("origin",), "published"),
    ],
)
def test_schema_and_parser_refuse_the_same(path, value):
    data = edited(path, value)
    assert list(faults(data, record_schema()))
    with pytest.raises(LoadError):
        parse_record(data)


@pytest.mark.parametrize("name", ["provenance", "raw", "interval", "publishable", "exact"])
def test_what_only_measured_records_have(name):
    data = published(rows=[2.0])
    target = data if name == "provenance" else data["rows"][0]
    target[name] = at(WHOLE, (name,) if name == "provenance" else ("rows", 0, name))
    assert list(faults(data, record_schema()))
    with pytest.raises(LoadError, match="unknown field"):
        parse_record(data)


def test_rows_and_provenance_belong_together():
    record = parse_record(WHOLE)
    with pytest.raises(LoadError, match="need schema 2"):
        replace(record, schema=1)
    with pytest.raises(LoadError, match="needs provenance"):
        replace(record, provenance=None)
    bare = replace(record.rows[0], raw=None, exact=None)
    with pytest.raises(LoadError, match=r"rows\[0\]: raw samples are missing"):
        replace(record, rows=(bare,))


def test_a_cost_only_record_has_no_rows_of_text():
    data = copy.deepcopy(WHOLE)
    data["provenance"] |= {"cost_only": True, "kernel": None, "exactness": None}
    with pytest.raises(LoadError, match="cost-only"):
        parse_record(data)
    timing = {"stage": "verify", "width": 4, "kernel": "wide", "value": 9.5, "unit": "ms"}
    data |= {"rows": [], "fits": [], "timings": [timing], "protocol": "profile"}
    assert complaints(data) == []
    assert list(faults(data, record_schema())) == []
