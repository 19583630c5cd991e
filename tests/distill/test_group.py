"""Two processes that train together, on this machine, over MLX's own rings."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxcel
from mlxcel.distill.batches import Batches
from mlxcel.distill.group import Group
from mlxcel.errors import ConfigError
from tests.distill.support import chat_model, options
from tests.support import tiny

ROOT = Path(mlxcel.__file__).parents[1]

RUN = """
import os, sys
from pathlib import Path
import mlx.core as mx, numpy as np
from tests.distill.support import chat_model, options
from tests.distill.test_training import Silent
from mlxcel.distill import pipeline
from mlxcel.distill.group import Group
out, resume, stop, more = sys.argv[1:]
group = Group.launched()
install, sums = pipeline.Trainer.install, []
def kept(trainer):
    install(trainer)
    sums.append([trainer.step, trainer.seconds,
                 *(float(mx.sum(v * (1 + mx.arange(v.size).reshape(v.shape) % 7)))
                   for v in trainer.params.values())])
pipeline.Trainer.install = kept
save = pipeline.Trainer.save
def killed(trainer):
    save(trainer)
    if trainer.step == int(stop) and group.rank == 0:
        os._exit(9)
pipeline.Trainer.save = killed
given = options(Path(out), train_rows=4, **eval(more))
result = pipeline.distill(chat_model(), given, Silent(), resume=resume == "1", group=group)
print(group.rank, group.size, sums, bool(result.evaluation), sep="|")
"""


def free_ports(count: int) -> list[int]:
    """Free ports, of those that systems give nobody who asks for any: they are bound later."""
    ports: list[int] = []
    for port in random.Random(os.getpid()).sample(range(15_000, 32_000), 1000):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError("no free port between 15000 and 32000")


def launch(out: Path, *, resume: bool = False, stop: int = 0, **more: Any) -> list[list[Any]]:
    """Run both processes; per process: rank, size, its figures, whether it evaluated. With
    ``stop`` the first dies after the checkpoint of that step, and the other cannot go on."""
    hosts = out.parent / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(2)]))
    environ = os.environ | {"PYTHONPATH": str(ROOT), "MLX_HOSTFILE": str(hosts)}
    words = [sys.executable, "-c", RUN, str(out), str(int(resume)), str(stop), repr(more)]
    started = []
    for rank in ("0", "1"):
        env = environ | {"MLX_RANK": rank}
        process = subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
    found = []
    for process in started:
        printed, _ = process.communicate(timeout=600)
        if stop:
            assert process.returncode == (9 if process is started[0] else 1)
            continue
        assert process.returncode == 0
        rank, size, sums, evaluated = printed.strip().splitlines()[-1].split("|")
        found.append([int(rank), int(size), json.loads(sums), evaluated == "True"])
    return found


def test_two_processes_hold_the_same_weights(tmp_path: Path) -> None:
    first, second = launch(tmp_path / "run", steps=6)
    assert (first[0], second[0], first[1], second[1]) == (0, 1, 2, 2)
    assert first[2] == second[2]
    assert first[2][0][0] == 6
    assert (first[3], second[3]) == (True, False)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["training"]["processes"] == 2
    assert len(list((tmp_path / "run" / "text").glob("text-*"))) == 2


@pytest.mark.slow
def test_the_clock_of_the_first_counts_for_both(tmp_path: Path) -> None:
    first, second = launch(tmp_path / "run", steps=None, minutes=0.02)
    assert first[2] == second[2]
    assert first[2][0][0] > 2
    assert 1.2 <= first[2][0][1] < 10


@pytest.mark.slow
def test_resumed_by_two_is_as_never_interrupted(tmp_path: Path) -> None:
    whole, _ = launch(tmp_path / "whole", steps=8)
    launch(tmp_path / "run", steps=8, checkpoint_seconds=0.0, stop=4)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    again, other = launch(tmp_path / "run", resume=True, steps=8)
    assert whole[2][0][0] == again[2][0][0] == 8
    assert whole[2][0][2:] == again[2][0][2:] == other[2][0][2:]


def test_each_process_has_its_own_rows() -> None:
    target = chat_model().target
    tokens = np.arange(11 * 6, dtype=np.uint32).reshape(11, 6) % tiny.VOCAB
    weights = np.ones((11, 6), np.float32)
    seen = []
    for rank in (0, 1):
        group = Group()
        group.rank, group.size = rank, 2
        batches = Batches(target, tokens, weights, rows=2, seed=0, keep=False, group=group)
        assert len(batches) == 2
        assert batches.tokens_per_batch == 2 * 2 * 6
        seen.append({tuple(np.array(batches.at(step)[1]).ravel()) for step in range(4)})
        assert len(seen[-1]) == 2
    assert not seen[0] & seen[1]


def test_alone_nothing_is_averaged() -> None:
    group = Group()
    gradients = {"a.b": mx.ones((3,))}
    assert group.alone
    assert group.mean(gradients) is gradients
    assert float(group.first(2.5)) == 2.5
    group.wait()


@pytest.mark.slow
def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    from mlxcel.distill.pipeline import distill
    from tests.distill.test_training import Silent

    launch(tmp_path / "run", steps=2)
    given = options(tmp_path / "run", train_rows=4, steps=2)
    with pytest.raises(ConfigError, match="processes = 2, not 1"):
        distill(chat_model(), given, Silent(), resume=True)
