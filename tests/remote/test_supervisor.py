"""The supervisor with small scripts in the engine's place, and the real one where it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxcel
from mlxcel.config import Settings
from mlxcel.errors import EngineError, LoadError
from mlxcel.remote.address import Listener
from mlxcel.remote.spec import EngineSpec
from mlxcel.remote.supervisor import CRASHES, Supervisor, describe_exit
from tests.support.checkpoints import write_tiny_llama
from tests.support.hosting import until

ENVIRON = os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}
SAYS = (
    "import os, signal, socket, sys, time\n"
    "from mlxcel.remote.wire import pack\n"
    "line = socket.socket(fileno=int(sys.argv[1]))\n"
    "def say(**state): line.sendall(pack(['state', state], 9999))\n"
)
SPEC = EngineSpec(target="somewhere", drain_seconds=0.2)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(tmp_path / "e.sock") as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxcel.remote.supervisor.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("mlxcel.remote.supervisor.LONGEST_PAUSE", 0.02)
    monkeypatch.setattr("mlxcel.remote.supervisor.GRACE_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", ENVIRON["PYTHONPATH"])


def supervised(listener: Listener, script: str, **options: Any) -> tuple[Supervisor, list[Any]]:
    states: list[Any] = []
    command = (sys.executable, "-c", script)
    return Supervisor(SPEC, listener, on_state=states.append, command=command, **options), states


def test_a_crash_loop_is_given_up_with_the_last_reason(listener: Listener) -> None:
    failed = "say(state='failed', error=['engine', 'no memory', None]); os._exit(70)"
    made, states = supervised(listener, SAYS + failed)
    with pytest.raises(EngineError, match=r"died 5 times in 60 s.*status 70: no memory"):
        made.run()
    deaths = [state for state in states if state["state"] == "died"]
    assert len(deaths) == CRASHES - 1
    pauses = [state["pause"] for state in deaths]
    assert pauses == [0.01, 0.02, 0.02, 0.02]
    assert len([state for state in states if state["state"] == "failed"]) == CRASHES


def test_no_restart(listener: Listener) -> None:
    made, states = supervised(listener, "import os; os.abort()", restart=False)
    with pytest.raises(EngineError, match="killed by SIGABRT"):
        made.run()
    assert states == []


def test_what_cannot_be_loaded_is_not_tried_again(listener: Listener) -> None:
    script = SAYS + "say(state='failed', error=['load', 'x: damaged', None]); os._exit(78)"
    made, states = supervised(listener, script)
    with pytest.raises(LoadError, match="x: damaged"):
        made.run()
    assert len(states) == 1


def test_an_orderly_end_is_the_end(listener: Listener) -> None:
    made, states = supervised(listener, SAYS + "say(state='draining'); os._exit(0)")
    made.run()
    assert states == [{"state": "draining"}]


def test_stopping_while_it_waits_to_start_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxcel.remote.supervisor.FIRST_PAUSE", 600.0)
    monkeypatch.setattr("mlxcel.remote.supervisor.LONGEST_PAUSE", 600.0)
    made, states = supervised(listener, "import os; os._exit(1)")
    thread = threading.Thread(target=made.run)
    thread.start()
    assert until(lambda: states)
    made.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_one_that_does_not_end_is_killed(listener: Listener) -> None:
    script = SAYS + (
        "signal.signal(signal.SIGTERM, lambda *_: say(state='deaf')); say(state='ready')\n"
        "while True: time.sleep(9)\n"
    )
    made, states = supervised(listener, script)
    thread = threading.Thread(target=made.run)
    thread.start()
    assert until(lambda: states)
    process = made._process
    assert process is not None
    began = time.monotonic()
    made.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - began > 0.6  # drain and grace
    assert states[-1] == {"state": "deaf"}
    assert process.returncode == -signal.SIGKILL


def test_the_spec_arrives_whole(listener: Listener, tmp_path: Path) -> None:
    spec = EngineSpec(
        target="t", drafter="lookup", drain_seconds=1.5, log_level=10,
        settings=Settings(cache_dir=tmp_path, max_rows=3, enable_mtp_b1=False),
    )  # fmt: skip
    script = (
        "import os, socket, sys\n"
        "from mlxcel.remote.child import Lifeline\n"
        "line = Lifeline(socket.socket(fileno=int(sys.argv[1])))\n"
        "line.tell({'state': 'echo', 'spec': line.spec().to_plain()}); os._exit(0)\n"
    )
    states: list[Any] = []
    Supervisor(
        spec, listener, on_state=states.append, command=(sys.executable, "-c", script)
    ).run()
    assert EngineSpec.from_plain(states[0]["spec"]) == spec


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (70, "ended with status 70"),
        (-9, "was killed by SIGKILL (by someone, or by the system for lack of memory)"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_how_a_process_ended(status: int, said: str) -> None:
    assert describe_exit(status) == said


def test_the_command_says_what_is_wrong_with_a_model(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    command = [sys.executable, "-m", "mlxcel", "engine", "--socket", str(path)]
    command += ["-m", str(tmp_path / "none")]
    environ = ENVIRON | {"MLXCEL_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mlxcel: error: ")
    assert str(tmp_path / "none") in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.exists()


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
def test_no_orphan_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    from mlxcel import EngineClient

    path = tmp_path / "e.sock"
    command = [sys.executable, "-m", "mlxcel", "engine", "--socket", str(path)]
    command += ["-m", str(write_tiny_llama(tmp_path / "tiny"))]
    environ = ENVIRON | {"MLXCEL_CACHE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert until(path.exists, 60)
        with EngineClient(path, ready=False, timeout=30) as client:
            pid = client.status()["pid"]
            assert alive(pid)
            assert pid != process.pid
            process.kill()
            process.wait(10)
            assert until(lambda: not alive(pid))
            assert until(lambda: client._link is not None and client._link.error is not None)
        assert path.is_socket()  # stale, and no obstacle to the next one
        Listener(path).close()
    finally:
        process.kill()
        process.wait(10)


# The real process with another engine in it, which needs no MLX and fails when asked.
FAILING = """
import os, sys, types
fake = types.ModuleType("mlxcel.remote.backend")
class EngineBackend:
    running = 0
    facts = {"model": "fake", "drafter": None, "has_chat_template": False}
    def __init__(self, spec, watcher, progress): self.watcher = watcher
    def begin(self, asked, ticket): self.watcher.failed("a round failed: boom")
    def call(self, name, arguments): return [os.getpid()]
    def cancel(self, ticket): pass
    def close(self): pass
fake.EngineBackend = EngineBackend
sys.modules["mlxcel.remote.backend"] = fake
from mlxcel.remote.child import main
os._exit(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def test_an_engine_that_fails_is_replaced_and_its_callers_know_why(listener: Listener) -> None:
    from mlxcel import EngineClient

    made, states = supervised(listener, FAILING)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        with EngineClient(listener.path) as client:
            first = client.encode("which")
            for _ in range(2):
                with pytest.raises(EngineError, match="has failed: a round failed: boom"):
                    client.generate("now")
                assert client.encode("which") != first  # asked at once, answered by the next one
        [reason, _] = [state["reason"] for state in states if state["state"] == "died"]
        assert reason == "the engine process ended with status 70: a round failed: boom"
    finally:
        made.stop()
        thread.join(30)
    assert not thread.is_alive()
