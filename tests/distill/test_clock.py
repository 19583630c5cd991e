"""Runs that end by the clock: killed, resumed, and better than a head that never learnt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_unflatten

import mlxcel
from mlxcel.distill.corpus import Corpus
from mlxcel.distill.evaluation import accepted_counts, summary
from mlxcel.distill.training import initial_weights
from mlxcel.models.drafters.mtp import MTPHead, load_mtp
from tests.distill.support import chat_model, options

ROOT = Path(mlxcel.__file__).parents[1]
PROMPTS = 8

RUN = """
import sys
from pathlib import Path
from tests.distill.support import chat_model, options
from tests.distill.test_training import Silent
from mlxcel.distill.pipeline import distill
out, minutes, tokens, how = sys.argv[1:]
given = options(Path(out), steps=None, minutes=float(minutes), tokens=int(tokens),
                checkpoint_seconds=0.5, eval_prompts=8)
distill(chat_model(), given, Silent(), resume=how == "resume")
"""


def start(out: Path, minutes: float, tokens: int, how: str) -> subprocess.Popen[bytes]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", RUN, str(out), str(minutes), str(tokens), how]
    return subprocess.Popen(words, env=environ, cwd=ROOT)


def steps_of(checkpoint: Path) -> tuple[int, float]:
    """Steps and training seconds that a checkpoint holds."""
    loaded: Any = mx.load(str(checkpoint), return_metadata=True)
    facts = json.loads(loaded[1]["mlxcel"])
    return int(facts["step"]), float(facts["seconds"])


def kill_after(process: subprocess.Popen[bytes], checkpoint: Path, seconds: float) -> None:
    """Kill -9 once so much training is in the checkpoint."""
    end = time.monotonic() + 300 + 2 * seconds
    while process.poll() is None and time.monotonic() < end:
        if checkpoint.exists() and steps_of(checkpoint)[1] >= seconds:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"


def held_out(out: Path, head: MTPHead | None = None) -> dict[str, Any]:
    """Figures of a head, or of an untrained one with the same draft ids, on held-out answers."""
    model = chat_model()
    given = options(out, steps=1, eval_prompts=PROMPTS)
    corpus = Corpus(out / "text", model.target, model.tokenizer, given, "0")
    text, labels = corpus.evaluation(lambda *_: None)
    trained = load_mtp(out, model.target)
    if head is None:
        head = trained
    else:
        head.restrict(trained.draft_ids)
    rows = [at for at, label in enumerate(labels) if label == "held-out"]
    return summary(accepted_counts(head, model.target, text), text.kinds, rows)


def untrained() -> MTPHead:
    head = MTPHead(chat_model().target)
    head.update(tree_unflatten(list(initial_weights(head, 0).items())))
    return head


def interrupted_run(out: Path, minutes: float, tokens: int) -> dict[str, Any]:
    """Run by the clock, kill at about a third, resume; returns the figures of both heads."""
    checkpoint = out / "checkpoint.safetensors"
    kill_after(start(out, minutes, tokens, "begin"), checkpoint, 20 * minutes)
    steps, seconds = steps_of(checkpoint)
    assert not (out / "model.safetensors").exists()
    text = {path: path.stat().st_mtime_ns for path in (out / "text").iterdir()}
    began = time.monotonic()
    assert start(out, minutes, tokens, "resume").wait() == 0
    again = time.monotonic() - began
    assert {path: path.stat().st_mtime_ns for path in (out / "text").iterdir()} == text
    after, total = steps_of(checkpoint)
    assert steps < after
    assert 60 * minutes <= total < 60 * minutes + 5
    assert again >= 60 * minutes - seconds  # the time before the kill counts, no more
    config = json.loads((out / "config.json").read_text())
    assert config["training"]["minutes"] == minutes
    assert config["training"]["steps"] == after
    assert config["training"]["train_seconds"] == pytest.approx(total, abs=0.1)
    return {"trained": held_out(out), "untrained": held_out(out, untrained()),
            "steps": after, "killed_at": steps, "seconds": total}  # fmt: skip


def check(found: dict[str, Any], more: float) -> None:
    """The gain must be ``more``; its standard error is 0.01 over some 2500 places."""
    trained, before = found["trained"], found["untrained"]
    assert trained["tokens"] == before["tokens"] > 100
    assert trained["positions"][0] > before["positions"][0] + more
    for width in ("2", "4", "8"):
        assert trained["emitted"][width] > before["emitted"][width]
    assert np.isfinite(list(trained["emitted"].values())).all()


def test_ten_seconds_by_the_clock(tmp_path: Path) -> None:
    # How many steps fit depends on the machine: only that it learnt, by three standard errors.
    check(interrupted_run(tmp_path, 10 / 60, 1500), 0.03)


@pytest.mark.slow
def test_five_minutes_by_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = interrupted_run(tmp_path, 5, 60_000)
    with capsys.disabled():
        print("\n" + json.dumps(found))
    check(found, 0.1)
