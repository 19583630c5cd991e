"""The table of processes: as Linux shows it, as ps of macOS prints it, and the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from mlxcel.bench.processes import PS, parse_ps, parse_stat, read_processes
from mlxcel.errors import LoadError

STAT = (
    "4242 (a (b) c) R 17 4242 4242 34816 4242 4194304 100 200 0 0 "
    "150 50 700 300 20 0 3 0 987654 1000 200 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0"
)
MACOS = """\
    1     0 Ss    12:05.27 /sbin/launchd
  345     1 R   1612:30.50 /System/Library/Frameworks/CoreServices.framework/mdworker_shared
  346     1 T      0:00.10 /Applications/One Drive.app/Contents/MacOS/OneDrive
"""


def test_a_name_may_hold_blanks_and_brackets():
    found = parse_stat(STAT, ticks=100)
    assert (found.pid, found.parent, found.name) == (4242, 17, "a (b) c")
    assert (found.seconds, found.reaped) == (2.0, 10.0)
    assert (found.started, found.stopped) == ("987654", False)


@pytest.mark.parametrize(("state", "stopped"), [("S", False), ("T", True), ("t", True)])
def test_a_stopped_process(state, stopped):
    assert parse_stat(STAT.replace(" R ", f" {state} ")).stopped is stopped


def test_ps_of_macos():
    found = read_processes(system="darwin", run=lambda words: MACOS if words == PS else None)
    assert [(p.pid, p.parent, p.name, p.stopped) for p in found] == [
        (1, 0, "launchd", False), (345, 1, "mdworker_shared", False), (346, 1, "OneDrive", True),
    ]  # fmt: skip
    assert [p.seconds for p in found] == [725.27, 96750.5, 0.1]


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:01.50", 1.5), ("01:02:03", 3723), ("2-01:00:00", 176400)]
)
def test_times_of_ps(text, seconds):
    assert parse_ps(f"1 0 S {text} x").seconds == seconds


def test_another_form_of_ps_is_an_error():
    with pytest.raises(LoadError, match="ps gave '1 0 S never x'"):
        parse_ps("1 0 S never x")


@pytest.mark.parametrize("how", [{"system": "darwin", "run": lambda words: None},
                                 {"system": "linux", "entries": list}])  # fmt: skip
def test_no_process_at_all_is_an_error(how):
    with pytest.raises(LoadError, match="shows no process"):
        read_processes(**how)


def test_a_process_that_ends_while_it_is_read_is_left_out():
    texts = {"/proc/4242/stat": STAT}
    found = read_processes(system="linux", read=texts.get, entries=lambda: ["1", "4242", "self"])
    assert [p.pid for p in found] == [4242]


def readers():
    yield pytest.param(lambda: read_processes(), id=sys.platform)
    if shutil.which("ps"):
        yield pytest.param(lambda: read_processes(system="darwin"), id="ps")


@pytest.mark.parametrize("read", list(readers()))
def test_this_host(read):
    """Our own time grows as we use it, and a child is found with its parent."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        before = {p.pid: p for p in read()}
        assert before[child.pid].parent == os.getpid()
        assert before[child.pid].name == "sleep"
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        after = {p.pid: p for p in read()}
        assert after[os.getpid()].seconds >= before[os.getpid()].seconds
        assert after[child.pid].started == before[child.pid].started
    finally:
        child.kill()
        child.wait()
