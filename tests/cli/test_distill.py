"""``mlxcel distill``: what the flags become, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlxcel.cli import main
from mlxcel.distill.options import Options
from mlxcel.distill.pipeline import Result as Made
from tests.distill.support import chat_model


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options, Any]]:
    """Nothing is loaded, written or trained; what would have been done is kept."""
    seen: list[tuple[str, Options, Any]] = []

    def distill(model: Any, options: Options, watcher: Any, **more: Any) -> Made:
        seen.append(("distill", options, more))
        return Made(options.out)

    def write_text(model: Any, options: Options, watcher: Any, *part: int) -> None:
        seen.append(("text", options, part))

    monkeypatch.setattr("mlxcel.runtime.loader.load_checkpoint", lambda *_, **__: chat_model())
    monkeypatch.setattr("mlxcel.distill.pipeline.distill", distill)
    monkeypatch.setattr("mlxcel.distill.pipeline.write_text", write_text)
    monkeypatch.setattr("mlxcel.cli.distill._print", lambda result: None)
    monkeypatch.setenv("MLX_CUDA_GRAPH_CACHE_SIZE", "2000")  # the command sets it otherwise
    return seen


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, ["distill", "--target", "tiny", "--out", "made", *args])


def test_defaults_are_those_of_the_options(called: list[Any]) -> None:
    assert invoke("--minutes", "3").exit_code == 0
    kind, options, more = called[0]
    assert kind == "distill"
    assert options == Options(target="tiny", out=Path("made"), minutes=3.0)
    assert more["resume"] is False


def test_flags_reach_the_options(called: list[Any]) -> None:
    given = ("--steps", "7", "--turn-tokens", "33", "--muon-lr", "0.5", "--adam-lr", "0.25",
             "--weight-decay", "0", "--unroll", "2", "--decay", "0.5", "--batch-rows", "9",
             "--train-rows", "3", "--length", "99", "--draft-vocab", "77", "--tokens", "1234",
             "--eval-tokens", "12", "--eval-prompts", "2", "--seed", "8", "--compile",
             "--resume")  # fmt: skip
    assert invoke(*given).exit_code == 0
    _, options, more = called[0]
    assert options == Options(
        target="tiny", out=Path("made"), steps=7, turn_tokens=33, muon_lr=0.5, adam_lr=0.25,
        weight_decay=0.0, unroll=2, decay=0.5, rows=9, train_rows=3, length=99, draft_vocab=77,
        tokens=1234, eval_tokens=12, eval_prompts=2, seed=8, compiled=True,
    )  # fmt: skip
    assert more["resume"] is True


@pytest.mark.parametrize(("given", "part"), [("0/1", (0, 1)), ("0/2", (0, 2)), ("3/4", (3, 4))])
def test_a_part_of_the_text_only(called: list[Any], given: str, part: tuple[int, int]) -> None:
    assert invoke("--steps", "1", "--text-part", given).exit_code == 0
    assert [(kind, seen) for kind, _, seen in called] == [("text", part)]


@pytest.mark.parametrize(
    "given", ["", "1", "/", "2/2", "0/0", "-1/2", "1/", "/2", "a/2", "1/b", "0/2/3", "0.5/2", "²/3"]
)
def test_bad_parts(called: list[Any], given: str) -> None:
    result = invoke("--steps", "1", "--text-part", given)
    assert result.exit_code == 2
    assert "--text-part" in result.stderr
    assert f"must be like 0/2 (part 0 or 1 of 2), got {given!r}" in result.stderr
    assert not called


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give minutes or steps"),
        (("--minutes", "-1"), "minutes must be 0.0001 to"),
        (("--minutes", "nan"), "minutes must be 0.0001 to"),
        (("--steps", "-1"), "steps must be 0 to"),
        (("--steps", "1", "--turn-tokens", "0"), "turn_tokens must be 1 to 65536, got 0"),
        (("--steps", "1", "--turn-tokens", "65537"), "turn_tokens must be 1 to 65536"),
        (("--steps", "1", "--muon-lr", "-0.1"), "muon_lr must be 0.0 to 10.0, got -0.1"),
        (("--steps", "1", "--muon-lr", "11"), "muon_lr must be 0.0 to 10.0"),
        (("--steps", "1", "--muon-lr", "nan"), "muon_lr must be 0.0 to 10.0"),
        (("--steps", "1", "--adam-lr", "inf"), "adam_lr must be 0.0 to 10.0"),
        (("--steps", "1", "--weight-decay", "-1"), "weight_decay must be 0.0 to 10.0"),
        (("--steps", "1", "--weight-decay", "nan"), "weight_decay must be 0.0 to 10.0"),
        (("--steps", "1", "--decay", "1.5"), "decay must be 0.0 to 1.0"),
        (("--steps", "1", "--unroll", "0"), "unroll must be 1 to 8"),
        (("--steps", "1", "--eval-prompts", "49"), "eval_prompts must be 1 to 48"),
        (("--steps", "1", "--draft-vocab", "1"), "draft_vocab must be 2 to"),
    ],
)
def test_bad_values_are_one_line_and_2(called: list[Any], args: tuple[str, ...], said: str) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mlxcel: error: {said}")
    assert result.stderr.count("\n") == 1
    assert not called


@pytest.mark.parametrize("name", ["--muon-lr", "--weight-decay", "--turn-tokens", "--minutes"])
def test_what_is_no_number(called: list[Any], name: str) -> None:
    result = invoke("--steps", "1", name, "much")
    assert result.exit_code == 2
    assert name in result.stderr
    assert not called


@pytest.mark.parametrize("left_out", ["--target", "--out"])
def test_what_is_needed(left_out: str) -> None:
    words = ["distill", "--target", "tiny", "--out", "made", "--steps", "1"]
    at = words.index(left_out)
    result = CliRunner().invoke(main, [*words[:at], *words[at + 2 :]])
    assert result.exit_code == 2
    assert left_out in result.stderr
