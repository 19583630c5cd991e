"""Files are added to a folder of evidence, and never changed."""

from __future__ import annotations

import json

import pytest

from mlxcel.errors import LoadError
from mlxcel.evidence import load_predictions, load_record, load_records
from mlxcel.evidence.folder import PACKAGED, add_file, as_text
from tests.decide.evidence import campaign

TEXT = as_text(campaign("new", "M4", (1.8,)))


def test_what_is_added_is_read_again(tmp_path):
    path = add_file(tmp_path / "some" / "folder", "new", TEXT)
    assert path.name == "new.json"
    assert load_record(path) == load_records([path.parent])[-1]


def test_a_file_that_is_there_is_left_as_it_is(tmp_path):
    path = add_file(tmp_path, "new", TEXT)
    with pytest.raises(LoadError, match=r"new\.json is there already and is left as it is"):
        add_file(tmp_path, "new", "another text")
    assert path.read_text() == TEXT


def test_nothing_is_left_of_a_write_that_fails(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        add_file(tmp_path, "new", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_the_packaged_folder_is_where_the_records_are():
    assert {record.id for record in load_records()} <= {path.stem for path in PACKAGED.iterdir()}


def test_predictions_of_a_further_folder(tmp_path):
    [founding] = load_predictions()
    assert load_predictions([tmp_path]) == (founding,)
    value = json.loads((PACKAGED / "predictions" / f"{founding.id}.json").read_text())
    add_file(tmp_path / "predictions", "mine", as_text(value | {"id": "mine"}))
    assert [item.id for item in load_predictions([tmp_path])] == [founding.id, "mine"]
    add_file(tmp_path / "predictions", "again", as_text(value))
    with pytest.raises(LoadError, match=f"another file has the id '{founding.id}' too"):
        load_predictions([tmp_path])
