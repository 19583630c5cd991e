"""``mlxcel pairings``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlxcel.cli import main
from mlxcel.decide.pairings import KNOWN_PAIRINGS
from mlxcel.models.drafters import FAMILIES


def test_the_list() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["pairings"])
    assert result.exit_code == 0
    for each in KNOWN_PAIRINGS:
        assert each.name in result.output
    lines = result.output.splitlines()
    assert sum(" not yet " in line for line in lines) == sum(
        not each.supported for each in KNOWN_PAIRINGS
    )
    assert "we have not run the published weights" in " ".join(result.output.split())
    assert "try: mlxcel demo --model mlx-community/gemma-4-31b-it-4bit --drafter" in result.output


def test_json() -> None:
    found = json.loads(CliRunner().invoke(main, ["pairings", "--json"]).output)
    assert [each["name"] for each in found] == [each.name for each in KNOWN_PAIRINGS]
    assert all(bool(each["command"]) == each["supported"] for each in found)


@pytest.mark.parametrize("each", KNOWN_PAIRINGS, ids=lambda each: each.name)
def test_what_is_listed_is_what_can_be_loaded(each) -> None:
    assert (each.model_types[1] in FAMILIES) == each.supported
