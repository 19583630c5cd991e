"""``mlxcel info``: what this host is."""

from __future__ import annotations

import dataclasses
import json

import click

from mlxcel.config import Settings
from mlxcel.hardware.host import Host, describe

__all__ = ["info"]

GIB = 1 << 30


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def info(as_json: bool) -> None:
    """Show what this host is and which versions run."""
    Settings.from_env()  # a wrong variable is named here as everywhere
    host = describe()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(host), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows(host):
        table.add_row(name, text)
    Console(markup=False, highlight=False).print(table)


def rows(host: Host) -> list[tuple[str, str]]:
    """Lines of the table, as name and text."""
    memory = f"{host.memory_bytes / GIB:.1f} GiB, {host.available_bytes / GIB:.1f} GiB available"
    lines = [
        ("backend", host.backend),
        ("chip", host.chip),
        ("cores", str(host.cores)),
        ("memory", memory),
        ("system", host.system),
        ("python", host.python),
        ("BLAS", f"{host.blas.name} ({host.blas.reason})"),
        ("C++ compiler", host.compiler or "none: mx.compile cannot work on the CPU"),
    ]
    if host.gpu_memory_bytes:
        lines.insert(4, ("GPU memory", f"{host.gpu_memory_bytes / GIB:.1f} GiB"))
    return lines + [(name, version or "not installed") for name, version in host.versions.items()]
