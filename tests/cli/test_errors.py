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
    assert capfd.readouterr() == ("", "mlxcel: a.gguf: no such file\n")


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
        timeout=60,
    )


def test_a_bad_variable_is_named() -> None:
    done = run("info", MLXCEL_BLAS="maybe")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mlxcel: MLXCEL_BLAS='maybe': use one of auto, off\n"


@pytest.mark.parametrize("words", [["nope"], ["info", "--nope"], []])
def test_usage_errors(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: mlxcel" in done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mlxcel", "info", "--json"],
        env=ENVIRON,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert done.stderr == b""
