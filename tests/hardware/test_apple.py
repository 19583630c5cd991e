"""Reading an Apple host by ``sysctl``, with recorded answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlxcel.decide.chips import identify
from mlxcel.hardware import apple, memory
from mlxcel.hardware.apple import read_apple, read_sysctl


def answers(brand: str, os: str, cores: int, memory: int, **more: str) -> dict[str, str]:
    return {
        "machdep.cpu.brand_string": brand,
        "kern.osproductversion": os,
        "hw.perflevel0.logicalcpu": str(cores),
        "hw.memsize": str(memory),
        "kern.hv_vmm_present": "0",
        **more,
    }


GIB = 1 << 30
RECORDED = {
    "M1 Ultra": (answers("Apple M1 Ultra", "15.6", 16, 128 * GIB), "applegpu_g13d"),
    "M3 Ultra": (answers("Apple M3 Ultra", "15.6.1", 24, 512 * GIB), "applegpu_g15d"),
    "M4 Max": (answers("Apple M4 Max", "26.1", 12, 128 * GIB), "applegpu_g16s"),
    "M5 Max": (answers("Apple M5 Max", "26.2", 6, 128 * GIB), "applegpu_g17s"),
    "virtual": (
        answers("Apple M1 (Virtual)", "14.7.1", 3, 7 * GIB, **{"kern.hv_vmm_present": "1"}),
        None,
    ),
    "Rosetta": (
        answers(
            "VirtualApple @ 2.50GHz", "14.0", 8, 16 * GIB, **{"sysctl.proc_translated": "1"}
        ),
        None,
    ),
    "M6": (answers("Apple M6", "27.0", 6, 32 * GIB), "applegpu_g18g"),
}


@pytest.mark.parametrize(
    ("name", "status", "wide", "neural"),
    [
        ("M1 Ultra", "known", False, False),
        ("M3 Ultra", "known", True, False),
        ("M4 Max", "known", True, False),
        ("M5 Max", "known", True, True),
        ("virtual", "virtual", None, False),
        ("Rosetta", "virtual", None, False),
        ("M6", "newer", None, False),
    ],
)
def test_recorded_hosts(name: str, status: str, wide: bool | None, neural: bool) -> None:
    recorded, architecture = RECORDED[name]
    facts = read_apple(recorded.get, architecture=architecture)
    chip = identify(
        facts.brand,
        architecture=facts.architecture,
        os_version=facts.os_version,
        virtual=facts.virtual,
    )
    assert (chip.status, chip.wide, chip.neural_accelerator) == (status, wide, neural)
    assert facts.memory_bytes == int(recorded["hw.memsize"])
    assert facts.performance_cores == int(recorded["hw.perflevel0.logicalcpu"])


def test_missing_sysctl() -> None:
    facts = read_apple(lambda name: None)
    assert (facts.brand, facts.os_version, facts.architecture) == (None, None, None)
    assert (facts.performance_cores, facts.memory_bytes, facts.virtual) == (None, None, False)
    assert identify(facts.brand).must_measure


@pytest.mark.parametrize(
    "garbage", ["", "  ", "\x00\x01", "-5", "1e9", "9" * 300, "a\nb", "0", "١٢", "yes"]
)
def test_garbage_is_no_number_and_no_flag(garbage: str) -> None:
    facts = read_apple(lambda name: garbage)
    assert facts.performance_cores is None
    assert facts.memory_bytes is None
    assert facts.virtual is False
    assert facts.brand is None or facts.brand.isprintable()
    assert identify(facts.brand, os_version=facts.os_version).must_measure


def test_a_program_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*words: object, **options: object) -> None:
        raise FileNotFoundError("sysctl")

    def failing(words: tuple[str, ...], **options: object) -> None:
        raise subprocess.CalledProcessError(1, words)

    def late(words: tuple[str, ...], **options: object) -> None:
        raise subprocess.TimeoutExpired(words, 10)

    for run in (missing, failing, late):
        monkeypatch.setattr(memory.subprocess, "run", run)
        assert read_sysctl("hw.memsize") is None
        assert read_apple().brand is None


def test_the_program_is_asked_for_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(apple, "run_command", lambda words: asked.append(words) or "64")
    assert read_sysctl("hw.memsize") == "64"
    assert asked == [("sysctl", "-n", "hw.memsize")]


def test_importing_runs_nothing() -> None:
    code = (
        "import subprocess, sys\n"
        "def refuse(*a, **k): raise SystemExit('a program was run')\n"
        "subprocess.run = subprocess.Popen = refuse\n"
        "import mlxcel.hardware.apple, mlxcel.decide.gate, mlxcel.decide.policy\n"
        "assert not any(name.split('.')[0] in ('mlx', 'numpy') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
