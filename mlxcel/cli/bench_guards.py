"""Options of the guards, for every command that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlxcel.bench.guards import GuardOptions
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

    ``guards`` is a function from the cache folder to `GuardOptions`.
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
        def guards(folder: Path) -> GuardOptions:
            return make_guards(
                folder,
                quiet=None if no_wait else (quiet_seconds, quiet_timeout),
                pause=(*(INDEXERS if pause_indexers else ()), *pause_names),
                pause_deadline=pause_deadline,
            )

        return command(*args, guards=guards, **kwargs)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


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
