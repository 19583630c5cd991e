"""The chip that computes here, as the gate's table knows it."""

from __future__ import annotations

from mlxcel.decide.chips import Chip, identify
from mlxcel.hardware.apple import read_apple
from mlxcel.hardware.host import Sources, describe

__all__ = ["this_chip"]


def this_chip(sources: Sources | None = None) -> Chip:
    """The chip that computes on this host.

    Parameters
    ----------
    sources : Sources, optional
        Where to ask; the real machine by default.

    Raises
    ------
    LoadError
        No MLX backend is installed.
    """
    ask = sources or Sources()
    host = describe(ask)
    if host.backend == "cuda":
        return identify(host.chip)
    if host.backend == "cpu":
        # The table is about Apple GPUs: the same chip's CPU must not be found in it.
        return identify(f"CPU {host.chip}")
    architecture = ask.mlx().device_info().get("architecture")
    facts = read_apple(
        lambda name: ask.run(("sysctl", "-n", name)), architecture=str(architecture or "")
    )
    return identify(
        facts.brand,
        architecture=facts.architecture,
        os_version=facts.os_version,
        virtual=facts.virtual,
    )
