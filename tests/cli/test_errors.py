"""How commands end: one line on stderr and a status, whatever went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import mlxcel
from mlxcel.cli.errors import FAILED, INTERRUPTED, friendly
from mlxcel.errors import LoadError

ENVIRON = os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}


def command(error: BaseException | None) -> click.Command:
    """A command that ends with an error, or well."""

    @click.command()
    def work() -> None:
        if error is not None:
            raise error

    return work


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (LoadError("no such file"), FAILED),
        (KeyboardInterrupt(), INTERRUPTED),
        (click.UsageError("bad option"), 2),
        (click.exceptions.Exit(5), 5),
    ],
)
def test_status(error: BaseException | None, status: int) -> None:
    with pytest.raises(SystemExit) as caught:
        friendly(command(error).main, args=[])
    assert caught.value.code == status


def test_an_error_of_ours_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        friendly(command(LoadError("a.gguf: no such file")).main, args=[])
    assert capfd.readouterr() == ("", "mlxcel: error: a.gguf: no such file\n")


def test_another_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        friendly(command(ZeroDivisionError()).main, args=[])


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "mlxcel", *words],
        env=ENVIRON | environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_bad_variable_is_named() -> None:
    done = run("info", MLXCEL_BLAS="maybe")
    assert (done.returncode, done.stdout) == (2, "")
    for part in ("mlxcel: error: ", "MLXCEL_BLAS", "'maybe'", "auto, off"):
        assert part in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_variable_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    done = run("info", MLXCEL_MAX_ROW="3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mlxcel: error: there is no variable MLXCEL_MAX_ROW")
    assert "did you mean MLXCEL_MAX_ROWS?" in done.stderr
    assert run("info", "--help", MLXCEL_MAX_ROW="3").returncode == 0


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["nope"], "No such command 'nope'.", "mlxcel"),
        (["info", "--nope"], "No such option '--nope'", "mlxcel info"),
        (["generate"], "Missing option '--prompt'", "mlxcel generate"),
        (
            ["gate", "explain", "--kernels", "some"],
            "'--kernels': 'some' is not",
            "mlxcel gate explain",
        ),
        (["gate", "nope"], "No such command 'nope'.", "mlxcel gate"),
        (["probe", "kernels", "--width", "99"], "99 is not in the range", "mlxcel probe kernels"),
    ],
)
def test_usage_errors_are_one_line_and_a_hint(words: list[str], said: str, hint: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("mlxcel: error: ")
    assert said in first
    assert second == f"mlxcel: try '{hint} --help'"


@pytest.mark.parametrize("words", [[], ["gate"], ["probe"]])
def test_without_a_command_the_help_is_shown(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(" ".join(["Usage: mlxcel", *words]))


def test_a_message_of_several_lines_becomes_one(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        friendly(command(click.UsageError("choose from:\n\ta,\n\tb")).main, args=[])
    assert capfd.readouterr().err.startswith("mlxcel: error: choose from: a, b\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mlxcel", "info", "--json"],
        env=ENVIRON,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    os.close(writing)
    assert done.stderr == b""
