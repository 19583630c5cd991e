"""How a command ends when something goes wrong: one line on stderr and a status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from mlxcel.errors import MlxcelError

__all__ = ["FAILED", "INTERRUPTED", "UNREAD", "friendly"]

FAILED = 2
UNREAD = 1  # what click itself gives when a write inside a command fails so
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def friendly(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a command's ``main`` and turn its known failures into exit statuses.

    Parameters
    ----------
    run : callable
        Such as ``click.Group.main``; the other arguments are passed on.

    Raises
    ------
    SystemExit
        2 after an error of mlxcel or of usage, 130 after an interrupt, 1 without a word when
        the reader of our output has gone away.
    """
    standalone = kwargs.pop("standalone_mode", True)
    try:
        result = run(*args, standalone_mode=False, **kwargs)
        sys.stdout.flush()
    except MlxcelError as error:
        _say(error.message)
        raise SystemExit(FAILED) from error
    except BrokenPipeError:
        _close_stdout()
        raise SystemExit(UNREAD) from None
    except click.ClickException as error:
        if not standalone:
            raise
        _show(error)
        raise SystemExit(error.exit_code) from error
    except (KeyboardInterrupt, click.Abort) as error:
        raise SystemExit(INTERRUPTED) from error
    if not standalone:
        return result
    raise SystemExit(result if isinstance(result, int) else 0)


def _say(message: str) -> None:
    click.echo(f"mlxcel: error: {message}", err=True)


def _show(error: click.ClickException) -> None:
    """One line, and one where to read on after an error of usage."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # the help that was asked for
        return
    _say(" ".join(error.format_message().split()))
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        click.echo(f"mlxcel: try '{context.command_path} --help'", err=True)


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
