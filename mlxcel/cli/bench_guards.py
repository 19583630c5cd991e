"""Options of the guards, for every command that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mlxcel.bench.guards import GuardOptions, Guards, guarded
from mlxcel.bench.pause import DEADLINE_SECONDS, INDEXERS
from mlxcel.decide.quiet import QuietLimits

__all__ = ["guard_options", "make_guards"]

_DEFAULTS = QuietLimits()

_OPTIONS = (
    click.option("--no-wait", is_flag=True, help="Do not wait for a quiet host; it is recorded."),
    click.option(
        "--quiet-seconds",
        type=click.FloatRange(0, min_open=True),
        default=_DEFAULTS.seconds,
        show_default=True,
        help="Quiet time to gather before measuring.",
    ),
    click.option(
        "--quiet-timeout",
        type=click.FloatRange(0),
        default=_DEFAULTS.timeout,
        show_default=True,
        help="Measure all the same after so many seconds, with a warning; 0 waits for ever.",
    ),
    click.option(
        "--pause-indexers", is_flag=True, help="Keep the indexers of macOS stopped meanwhile."
    ),
    click.option(
        "--pause-program",
        "pause_names",
        multiple=True,
        metavar="NAME",
        help="Keep this program stopped too (exact name); may be repeated.",
    ),
    click.option(
        "--pause-deadline",
        type=click.FloatRange(0, min_open=True),
        default=DEADLINE_SECONDS,
        show_default=True,
        help="Let them go on after so many seconds, whatever happens.",
    ),
)


def guard_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as one argument: ``guards``.

    ``guards`` takes the user's cache folder and gives a function that starts the guards, as a
    context manager. A command with an option ``--quick`` does not wait for a quiet host then,
    unless the quiet time is named: its rows are not published anyway.
    """

    @functools.wraps(command)
    def run(
        *args: Any,
        no_wait: bool,
        quiet_seconds: float,
        quiet_timeout: float,
        pause_indexers: bool,
        pause_names: tuple[str, ...],
        pause_deadline: float,
        **kwargs: Any,
    ) -> Any:
        wait = not no_wait and (not kwargs.get("quick") or _named("quiet_seconds"))

        def guards(folder: Path) -> Callable[[], AbstractContextManager[Guards]]:
            options = make_guards(
                folder,
                quiet=(quiet_seconds, quiet_timeout) if wait else None,
                pause=(*(INDEXERS if pause_indexers else ()), *pause_names),
                pause_deadline=pause_deadline,
            )
            return functools.partial(guarded, options, notify=_say)

        return command(*args, guards=guards, **kwargs)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def _named(option: str) -> bool:
    """Whether the caller gave an option."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not ParameterSource.DEFAULT


def _say(text: str) -> None:
    click.echo(text, err=True)


def make_guards(
    folder: Path,
    *,
    quiet: tuple[float, float] | None,
    pause: tuple[str, ...] = (),
    pause_deadline: float = DEADLINE_SECONDS,
) -> GuardOptions:
    """The guards of a command.

    Parameters
    ----------
    folder : Path
        The user's cache folder.
    quiet : (float, float) or None
        Quiet seconds to gather and after how many to give up waiting; ``None`` does not wait.
    pause, pause_deadline
        As for `GuardOptions`.

    Notes
    -----
    Looks are as frequent as the time to gather needs: nine within it, ten seconds apart at most.
    """
    limits = None
    if quiet is not None:
        seconds, timeout = quiet
        sample = min(_DEFAULTS.sample_seconds, seconds / 9)
        limits = QuietLimits(seconds=seconds, timeout=timeout, sample_seconds=sample)
    return GuardOptions(folder=folder, quiet=limits, pause=pause, pause_deadline=pause_deadline)
