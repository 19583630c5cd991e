"""The option ``--numerics``, and the settings it makes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import click

from mlxcel.config import Settings

__all__ = ["numerics_option", "settings_for"]

numerics_option = click.option(
    "--numerics",
    type=click.Choice(["fast", "invariant"]),
    help="Invariant: all passes of decode have one shape.",
)


def settings_for(width: int | None, **given: Any) -> Settings:
    """Settings of a command that asks for one block width, or for none.

    In invariant numerics all passes are made for the default width, so it is raised to the
    width of the command. Options that were not given (``None``) are left to the environment.
    """
    settings = Settings.from_env(os.environ, **given)
    if width is None or settings.numerics == "fast":
        return settings
    if not settings.default_width < width <= settings.max_width:
        return settings  # too wide is the request's error
    return replace(settings, default_width=width)
