"""Options of the guards, as a command that measures gets them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mlxcel.bench.pause import INDEXERS
from mlxcel.cli.bench_guards import guard_options
from mlxcel.decide.quiet import QuietLimits


@pytest.fixture
def options():
    """Runs a command with words and gives the guards' options, or the exit status."""
    seen = []

    @click.command()
    @click.option("--quick", is_flag=True)
    @guard_options
    def command(quick, guards):
        seen.append((quick, guards))

    def run(*words):
        result = CliRunner().invoke(command, words)
        if result.exit_code:
            return result.exit_code
        quick, guards = seen.pop()
        assert quick is ("--quick" in words)
        [found] = guards(Path("cache")).args
        assert found.folder == Path("cache")
        return found

    return run


def test_defaults_are_those_of_the_protocol(options):
    found = options()
    assert (found.quiet, found.pause, found.pause_deadline) == (QuietLimits(), (), 2700)


def test_pauses(options):
    found = options("--pause-indexers", "--pause-program", "backup", "--pause-deadline", "60")
    assert (found.pause, found.pause_deadline) == ((*INDEXERS, "backup"), 60)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ((), 90),
        (("--no-wait",), None),
        (("--quick",), None),
        (("--quick", "--quiet-seconds", "5"), 5),
        (("--quiet-seconds", "5", "--no-wait"), None),
    ],
)
def test_how_long_it_waits(options, words, seconds):
    found = options(*words)
    assert (found.quiet.seconds if found.quiet else None) == seconds


@pytest.mark.parametrize(
    "words", [("--pause-deadline", "0"), ("--quiet-seconds", "0"), ("--quiet-timeout", "-1")]
)
def test_bad_values_are_errors_of_usage(options, words):
    assert options(*words) == 2


def test_the_guards_start_and_say_what_they_wait_for_on_stderr(tmp_path):
    @click.command()
    @guard_options
    def command(guards):
        with guards(tmp_path)() as running:
            click.echo(running.report()["quiet"]["verdict"])

    result = CliRunner().invoke(command, ["--quiet-seconds", "1e9", "--quiet-timeout", "0.3"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "timed out\n"
    assert "not quiet for 1e+09 s within 0.3 s" in result.stderr
