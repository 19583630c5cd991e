"""`describe` on made-up hosts and on this one, and the message when MLX has no backend."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from mlxcel.cli import main
from mlxcel.cli.info import rows
from mlxcel.errors import LoadError
from mlxcel.hardware import blas
from mlxcel.hardware.host import Sources, describe, require_mlx


def core(*, metal: bool = False, cuda: dict[str, Any] | None = None) -> ModuleType:
    """A stand-in for ``mlx.core``."""
    module = SimpleNamespace(
        metal=SimpleNamespace(is_available=lambda: metal),
        cuda=SimpleNamespace(is_available=lambda: cuda is not None),
        device_info=lambda: cuda,
    )
    return cast(ModuleType, module)


def sources(module: ModuleType, **changes: Any) -> Sources:
    given: dict[str, Any] = {
        "system": "linux",
        "machine": "x86_64",
        "read": lambda path: None,
        "run": lambda words: None,
        "which": lambda name: None,
        "version": lambda name: None,
        "mlx": lambda: module,
    }
    return Sources(**(given | changes))


def test_linux_cpu() -> None:
    files = {
        "/proc/cpuinfo": "processor : 0\nmodel name\t: EPYC 7\nmodel name\t: EPYC 7\n",
        "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian 12"\n',
        "/proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\n",
    }
    host = describe(
        sources(core(), read=files.get, which=lambda name: f"/bin/{name}", version=lambda n: "1.0")
    )
    assert (host.backend, host.chip, host.system) == ("cpu", "EPYC 7", "Debian 12 (x86_64)")
    assert (host.memory_bytes, host.available_bytes) == (8192, 4096)
    assert host.compiler == "/bin/g++"
    assert host.versions == {"mlxcel": "1.0", "mlx": "1.0", "mlx-lm": "1.0", "numpy": "1.0"}
    assert host.blas is blas.choose()


def test_macos() -> None:
    answers = {
        ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M1 Ultra",
        ("sysctl", "-n", "hw.memsize"): "1024",
        ("sw_vers", "-productVersion"): "15.1",
    }
    host = describe(sources(core(metal=True), system="darwin", machine="arm64", run=answers.get))
    assert (host.backend, host.chip) == ("metal", "Apple M1 Ultra")
    assert (host.system, host.memory_bytes) == ("macOS 15.1 (arm64)", 1024)


def test_cuda() -> None:
    info = {"device_name": "NVIDIA H200", "total_memory": 150 << 30}
    host = describe(sources(core(cuda=info)))
    assert (host.backend, host.chip) == ("cuda", "NVIDIA H200")
    assert host.gpu_memory_bytes == 150 << 30
    assert ("GPU memory", "150.0 GiB") in rows(host)


def test_nothing_can_be_read() -> None:
    host = describe(sources(core()))
    assert host.chip == "x86_64"
    assert host.compiler is None
    assert any("mx.compile" in text for _, text in rows(host))
    assert ("mlx-lm", "not installed") in rows(host)


def test_this_host() -> None:
    host = describe()
    assert host.chip
    assert host.cores >= 1
    assert host.versions["mlx"]


def test_info_as_table_and_as_json() -> None:
    table = CliRunner().invoke(main, ["info"])
    assert table.exit_code == 0
    assert "backend" in table.output
    done = CliRunner().invoke(main, ["info", "--json"])
    assert json.loads(done.output).keys() == {f.name for f in dataclasses.fields(describe())}


def test_mlx_without_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    require_mlx()
    monkeypatch.setattr(blas, "find_mlx_library", lambda: None)
    with pytest.raises(LoadError, match=r"mlxcel\[cpu\].*mlxcel\[cuda\]"):
        require_mlx()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match="mlx is not installed"):
        require_mlx()
