"""The package's records: valid, in the schema's form, and what the sources say."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import mlxcel.evidence
from mlxcel.bench.verify import verify_record
from mlxcel.decide.fits import fit_line
from mlxcel.decide.readings import readings
from mlxcel.decide.record_json import parse_record, record_to_dict
from mlxcel.errors import LoadError
from mlxcel.evidence import load_decision, load_predictions, load_records, record_schema
from tests.decide.evidence import campaign
from tests.evidence.schema_check import faults

RECORDS = load_records()
READINGS = readings(RECORDS)
FOLDER = Path(mlxcel.evidence.__file__).parent
FILES = sorted(p for p in FOLDER.glob("*.json") if p.name not in ("schema.json", "decision.json"))


def rows(name):
    return [reading for reading in READINGS if reading.record.id == name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_named_after_its_record_and_keeps_the_schema(path):
    value = json.loads(path.read_text(encoding="utf-8"))
    assert value["id"] == path.stem
    assert list(faults(value, record_schema())) == []
    assert record_to_dict(parse_record(value)) == value


def test_they_are_published_with_an_address_or_measured_and_sound():
    assert len(RECORDS) == len(FILES) > 40
    for record in RECORDS:
        if record.origin == "measured":
            assert record.schema == 2
            assert verify_record(record) == []
            continue
        assert record.schema == 1
        assert record.address
        assert record.address.startswith("lablup/mlxcel")
        assert "http" not in record.address


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rows", 0, "speedup"), "2"),
        (("rows", 0, "speedup"), -1),
        (("rows", 0, "requested_width"), 0),
        (("rows", 0, "classic_samples"), []),
        (("host", "generation"), "M9"),
        (("pairing", "kind"), "eagle"),
        (("date",), "yesterday"),
        (("round_loop",), None),
        (("id",), "A B"),
        (("schema",), 2),
    ],
)
def test_schema_and_parser_refuse_the_same(path, value):
    data = campaign(rows=[2.0])
    assert list(faults(data, record_schema())) == []
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert list(faults(data, record_schema()))
    with pytest.raises(LoadError):
        parse_record(data)


@pytest.mark.parametrize("place", [(), ("host",), ("pairing",), ("rows", 0)])
def test_schema_and_parser_know_the_same_fields(place):
    whole = campaign(rows=[2.0])
    at = whole
    for key in place:
        at = at[key]
    for name in at:
        data = copy.deepcopy(whole)
        inner = data
        for key in place:
            inner = inner[key]
        del inner[name]
        assert list(faults(data, record_schema())), name
        inner[f"{name}2"] = None
        assert len(list(faults(data, record_schema()))) == 2, name


PUBLISHED_COSTS = {
    "m5max-12b-2026-08-19": [1.27, 1.31, 1.29],
    "m3ultra-12b-2026-08-19": [1.50, 1.61, 1.51],
    "m1ultra-12b-2026-08-19": [2.70, 3.15, 2.72],
    "m3ultra-31b-2026-08-20": [1.51, 1.51, 1.52],
    "m3ultra-31b-sweep-2026-08-20": [1.16, 1.32, 1.51, 1.68, 1.91, 2.14],
}


@pytest.mark.parametrize("name", PUBLISHED_COSTS)
def test_round_costs_are_the_published_ones(name):
    """Worked out from the transcribed rows; the sources print them with two digits."""
    costs = [reading.round_cost for reading in rows(name)]
    assert costs == pytest.approx(PUBLISHED_COSTS[name], abs=0.011)


@pytest.mark.parametrize(
    ("name", "classic", "a", "b", "residual"),
    [
        ("m3ultra-12b-sweep-2026-08-19", 64.2, 1.14, 0.090, 0.08),
        ("m3ultra-31b-sweep-2026-08-20", 31.8, 0.83, 0.170, 0.064),
        ("m1ultra-12b-sweep-2026-08-19", 34.9, 1.35, 0.346, 0.20),
        ("m1ultra-qwen-sweep-2026-08-19", 23.79, 0.46, 0.771, 0.06),
    ],
)
def test_fits_are_the_published_ones(name, classic, a, b, residual):
    """One wrong digit in a row of a sweep moves its fit."""
    own = rows(name)
    assert {reading.classic_tok_s for reading in own} == {classic}
    line = fit_line([(reading.row.width, reading.fit_cost) for reading in own])
    [fit] = own[0].record.fits
    assert (fit.a, fit.b, fit.largest_residual) == (a, b, residual)
    assert line.a == pytest.approx(a, abs=0.0051)
    assert line.b == pytest.approx(b, abs=0.00051)
    assert line.largest_residual == pytest.approx(residual, abs=0.0051)


def test_the_founding_rows():
    assert [r.speedup for r in rows("m1ultra-31b-2026-06")] == [0.86, 0.96, 0.75, 0.91]
    assert [r.speedup for r in rows("m5max-31b-2026-06")] == [1.39, 1.29, 1.20]
    assert [r.speedup for r in rows("m3ultra-31b-2026-08-20")] == [2.65, 2.41, 1.95]


def test_the_prediction_and_the_decision_can_be_read():
    [prediction] = load_predictions()
    assert (prediction.chip, prediction.width) == ("Apple M1 Ultra", 4)
    assert load_decision().made_on


def test_records_of_further_folders_come_after(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(campaign("mine", rows=[2.0])))
    (tmp_path / "a.txt").write_text("not a record")
    assert [r.id for r in load_records([tmp_path])] == [*(r.id for r in RECORDS), "mine"]
    assert [r.id for r in load_records([tmp_path], packaged=False)] == ["mine"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b'{"schema": 1, "schema": 1}', "'schema' occurs twice"),
        (b"[" * 10**5, "not readable as JSON"),
        (b"[]", "must be an object"),
        (b'{"schema": 1}', "'id' is missing"),
    ],
)
def test_a_corrupt_file_is_named_with_the_reason(tmp_path, content, reason):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=reason) as caught:
        load_records([tmp_path])
    assert str(path) in str(caught.value)


def test_a_second_file_with_an_id_is_named(tmp_path):
    path = tmp_path / "again.json"
    path.write_text(json.dumps(campaign(RECORDS[0].id, rows=[2.0])))
    with pytest.raises(LoadError, match=f"again.json: another file has the id '{RECORDS[0].id}'"):
        load_records([tmp_path])


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(LoadError, match="no such folder"):
        load_records([tmp_path / "none"])
