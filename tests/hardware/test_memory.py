"""Memory and processor limits, read from made-up file trees of both cgroup versions."""

from __future__ import annotations

import pytest

from mlxcel.hardware import cgroup
from mlxcel.hardware.memory import available_bytes, run_command, total_bytes

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {12 * GIB // 1024} kB\n"
V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


def reader(files: dict[str, str]) -> cgroup.Reader:
    return ({"/proc/meminfo": MEMINFO} | files).get


def linux(files: dict[str, str]) -> tuple[float, float]:
    """Total and available GiB on Linux with these files."""
    read = reader(files)
    total = total_bytes(system="linux", read=read, run=lambda words: None)
    return total / GIB, available_bytes(system="linux", read=read, run=lambda words: None) / GIB


def test_without_limits_the_machine_counts() -> None:
    assert linux({}) == (16, 12)


def test_version_2_takes_the_tightest_level() -> None:
    files = {
        "/proc/self/cgroup": "0::/pod/box\n",
        f"{V2}/pod/box/memory.max": "max\n",
        f"{V2}/pod/memory.max": f"{4 * GIB}\n",
        f"{V2}/pod/memory.current": f"{3 * GIB}\n",
        f"{V2}/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert linux(files) == (4, 2)


def test_version_2_inside_a_container_has_its_files_at_the_root() -> None:
    files = {
        "/proc/self/cgroup": "0::/\n",
        f"{V2}/memory.max": f"{2 * GIB}",
        f"{V2}/memory.current": f"{GIB}",
    }
    assert linux(files) == (2, 1)


def test_version_1() -> None:
    files = {
        "/proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/abc\n",
        f"{V1}/docker/abc/memory.limit_in_bytes": f"{8 * GIB}",
        f"{V1}/docker/abc/memory.usage_in_bytes": f"{7 * GIB}",
        f"{V1}/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}",
        f"{V1}/memory.limit_in_bytes": "9223372036854771712",
    }
    assert linux(files) == (8, 3)


def test_a_limit_above_the_machine_changes_nothing() -> None:
    files = {"/proc/self/cgroup": "0::/", f"{V2}/memory.max": f"{64 * GIB}"}
    assert linux(files) == (16, 12)


def test_more_used_than_allowed_leaves_nothing() -> None:
    files = {
        "/proc/self/cgroup": "0::/",
        f"{V2}/memory.max": "100",
        f"{V2}/memory.current": "900",
    }
    assert linux(files)[1] == 0


def test_macos() -> None:
    vm_stat = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               1000.\n"
        "Pages active:                             5000.\n"
        "Pages inactive:                           2000.\n"
        "Pages speculative:                          24.\n"
    )
    answers = {("sysctl", "-n", "hw.memsize"): str(64 * GIB), ("vm_stat",): vm_stat}
    assert total_bytes(system="darwin", run=answers.get) == 64 * GIB
    assert available_bytes(system="darwin", run=answers.get) == 3024 * 16384
    del answers[("vm_stat",)]
    assert available_bytes(system="darwin", run=answers.get) == 64 * GIB


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "max 100000"}, None),
        (
            {
                "/proc/self/cgroup": "0::/a",
                f"{V2}/a/cpu.max": "150000 100000",
                f"{V2}/cpu.max": "400000 100000",
            },
            1.5,
        ),
        (
            {
                "/proc/self/cgroup": "2:cpu,cpuacct:/",
                f"{V2}/cpu/cpu.cfs_quota_us": "50000",
                f"{V2}/cpu/cpu.cfs_period_us": "25000",
            },
            2.0,
        ),
        (
            {
                "/proc/self/cgroup": "2:cpu,cpuacct:/",
                f"{V2}/cpu/cpu.cfs_quota_us": "-1",
                f"{V2}/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_cpu_quota(files: dict[str, str], quota: float | None) -> None:
    assert cgroup.cpu_quota(reader(files)) == quota


def test_a_fraction_of_a_processor_is_one() -> None:
    files = {"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "10000 100000"}
    assert cgroup.usable_cores(reader(files)) == 1
    assert cgroup.usable_cores(reader({})) >= 1


def test_the_real_machine() -> None:
    assert 0 < available_bytes() <= total_bytes()


def test_commands_that_fail_give_none() -> None:
    assert run_command(("false",)) is None
    assert run_command(("no-such-command-at-all",)) is None
    assert run_command(("echo", "word")) == "word"
