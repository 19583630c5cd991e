"""Loss and its gradient, schedule, learning, checkpoints, and a run that is killed."""

from __future__ import annotations

import dataclasses
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
from mlx.utils import tree_flatten, tree_unflatten

import mlxcel
from mlxcel.distill.batches import Batches
from mlxcel.distill.chain import Chain
from mlxcel.distill.evaluation import accepted_counts
from mlxcel.distill.loss import LossSpec, labelled_places, unrolled_loss
from mlxcel.distill.memory import plan
from mlxcel.distill.optimizer import FLOOR, schedule
from mlxcel.distill.pipeline import distill, make_spec
from mlxcel.distill.script import ANSWER
from mlxcel.distill.synthesis import Text, row_seeds, synthesise, weights_of
from mlxcel.distill.training import Progress, Trainer, initial_weights
from mlxcel.errors import CapacityError, ConfigError, LoadError
from mlxcel.models.drafters.mtp import MTPHead, load_mtp
from tests.distill.support import END, chat_model, options
from tests.models.test_mtp import make_head
from tests.support import tiny

ROOT = Path(mlxcel.__file__).parents[1]


class Silent:
    def note(self, text: str) -> None:
        pass

    def tick(self, label: str, done: int, total: int) -> None:
        pass

    def trained(self, progress: Progress) -> None:
        assert 0 <= progress.fraction < 1
        assert 0 <= progress.agreement <= 1


def test_the_surrogate_has_the_gradient_of_the_loss() -> None:
    """Against the same loss written down plainly and differentiated by MLX."""
    target = chat_model().target
    head = make_head(target)
    rng = np.random.default_rng(0)
    tokens = mx.array(rng.integers(0, tiny.VOCAB, (3, 12)).astype(np.uint32))
    drawn = rng.random((3, 12)).astype(np.float32)
    weights = mx.array(np.where(drawn < 0.3, 0.0, drawn).astype(np.float32))
    hidden = target.hidden(tokens, [None, None])
    rows = target.body.embed_tokens.weight[:40]
    names = [name for name, _ in tree_flatten(head.parameters())]

    def outputs(values: list[mx.array]) -> list[mx.array]:
        head.update(tree_unflatten(list(zip(names, values, strict=True))))
        chain, state, out = Chain(head), hidden, []
        for k in range(3):
            fed = mx.pad(tokens[:, 1 + k :], [(0, 0), (0, k + 1)])
            state = chain.step(state, fed)
            out.append(state)
        return out

    def surrogate(values: list[mx.array]) -> mx.array:
        spec = LossSpec(decay=0.8, chunk=900, dtype=mx.float32)
        places, shares = (mx.array(a) for a in labelled_places(np.array(weights)))
        return unrolled_loss(outputs(values), hidden, places, shares, rows, spec)[0]

    def plain(values: list[mx.array]) -> mx.array:
        total = mx.array(0.0)
        for k, y in enumerate(outputs(values)):
            n = 12 - 2 - k
            goal = mx.softmax(hidden[:, k + 1 : k + 1 + n] @ rows.T, axis=-1)
            given = y[:, :n] @ rows.T
            entropy = mx.logsumexp(given, axis=-1) - mx.sum(goal * given, axis=-1)
            total = total + 0.8**k * mx.sum(entropy * weights[:, k + 2 :])
        return total / mx.sum(weights[:, 2:])

    start = [value for _, value in tree_flatten(head.parameters())]
    ours, theirs = mx.grad(surrogate)(start), mx.grad(plain)(start)
    assert max(float(mx.max(mx.abs(g)).item()) for g in theirs) > 1e-3
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-5, rtol=1e-3)


def test_schedule() -> None:
    assert schedule(0.03) == 1.0
    assert 0 < schedule(0.0) < 0.1
    assert schedule(0.015) == pytest.approx(0.5)
    assert schedule(1.0) == pytest.approx(FLOOR) == schedule(7.0)
    values = [schedule(i / 100) for i in range(3, 101)]
    assert values == sorted(values, reverse=True)


def test_batches_are_a_function_of_the_step() -> None:
    target = chat_model().target
    tokens = np.random.default_rng(0).integers(0, tiny.VOCAB, (10, 20)).astype(np.uint16)
    weights = np.ones((10, 20), np.float32)
    kept, fresh = (
        Batches(target, tokens, weights, rows=3, seed=1, keep=keep) for keep in (True, False)
    )
    assert len(kept) == 3
    seen = []
    for step in [0, 1, 2, 3, 4, 5, 1]:
        for a, b in zip(kept.at(step), fresh.at(step), strict=True):
            np.testing.assert_array_equal(np.array(a), np.array(b))
        seen.append(np.array(kept.at(step)[1]).tobytes())
    assert seen[6] == seen[1]
    assert set(seen[:3]) == set(seen[3:6])


def trainer(model: Any, tmp_path: Path, steps: int, text: Text, **changes: Any) -> Trainer:
    given = options(tmp_path, steps=steps, length=64, train_rows=8)
    sizes = plan(model.target, given, "cpu", 1 << 33)
    spec = dataclasses.replace(make_spec(given, sizes, "cpu", {"seed": 0}), **changes)
    head = MTPHead(model.target)
    batches = Batches(model.target, text.tokens, weights_of(text.kinds), rows=8, seed=0, keep=True)
    return Trainer(head, model.target, batches, spec, tmp_path / "checkpoint.safetensors")


def texts(model: Any, rows: int, batch: int) -> Text:
    from mlxcel.distill.script import ChatFormat, Scripts

    form, scripts = ChatFormat.of(model.tokenizer), Scripts()
    rng = np.random.default_rng(batch)
    for _ in range(rows):
        scripts.add_answers(form, 0.7, [rng.integers(4, tiny.VOCAB, 3).tolist()] * 9)
    return synthesise(
        model.target, scripts, length=64, seeds=row_seeds(0, batch, rows),
        temperatures=np.full(rows, 0.7, np.float32), ends=[END],
    )  # fmt: skip


def test_forty_steps_raise_held_out_acceptance(tmp_path: Path) -> None:
    model = chat_model()
    text, held = texts(model, 48, 0), texts(model, 8, 1)
    run = trainer(model, tmp_path, 40, text)
    answer = held.kinds[:, 1:] == ANSWER
    run.install()
    before = accepted_counts(run.head, model.target, held, drafts=3)[answer].mean()
    run.train()
    after = accepted_counts(run.head, model.target, held, drafts=3)[answer].mean()
    assert run.step == 40
    assert after > before + 0.1


def test_compiled_steps_agree(tmp_path: Path) -> None:
    model = chat_model()
    text = texts(model, 16, 0)
    plain, compiled = (
        trainer(model, tmp_path, 40, text, compiled=compiled) for compiled in (False, True)
    )
    for _ in range(3):
        a, b = plain.advance(0.5), compiled.advance(0.5)
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-3)


def test_checkpoints_continue_exactly(tmp_path: Path) -> None:
    model = chat_model()
    text = texts(model, 32, 0)
    whole = trainer(model, tmp_path, 6, text)
    whole.train()
    for step in range(6):
        if step % 2 == 0:  # a new process every two steps
            part = trainer(model, tmp_path, 6, text)
            assert part.resume() == (step > 0 or part._checkpoint.exists())
            if step == 0:
                part = trainer(model, tmp_path, 6, text)
        part.advance(part.fraction())
        part.save()
    for name, value in whole.params.items():
        np.testing.assert_array_equal(np.array(value), np.array(part.params[name]))
    other = trainer(model, tmp_path, 6, text, recorded={"seed": 1})
    with pytest.raises(ConfigError, match="made with seed = 0, not 1"):
        other.resume()
    part._checkpoint.write_bytes(b"broken")
    with pytest.raises(LoadError, match="cannot be read"):
        other.resume()


def test_initial_weights_depend_on_the_seed_only() -> None:
    head = MTPHead(chat_model().target)
    first, again, other = (initial_weights(head, seed) for seed in (0, 0, 1))
    assert all((first[name] == again[name]).all().item() for name in first)
    assert not (first["fc.weight"] == other["fc.weight"]).all().item()
    assert first["norm.weight"].tolist() == [1.0] * 32


KILLED = """
import sys
from pathlib import Path
from tests.distill.support import chat_model, options
from tests.distill.test_training import Silent
from mlxcel.distill.pipeline import distill
given = options(Path(sys.argv[1]), steps=30, checkpoint_seconds=0.0, eval_prompts=1)
distill(chat_model(), given, Silent(), resume=sys.argv[2:] == ["resume"])
"""


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    # The same number of threads in all processes: sums may depend on it.
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-c", KILLED]
    subprocess.run([*words, str(whole)], env=environ, cwd=ROOT, check=True, timeout=600)
    words.append(str(killed))
    process = subprocess.Popen(words, env=environ, cwd=ROOT)
    checkpoint, end = killed / "checkpoint.safetensors", time.monotonic() + 300
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    subprocess.run([*words, "resume"], env=environ, cwd=ROOT, check=True, timeout=600)
    files = ("model.safetensors", "checkpoint.safetensors")
    for name in files:
        a, b = (mx.load(str(folder / name)) for folder in (whole, killed))
        assert isinstance(a, dict)
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key, value in a.items():
            np.testing.assert_array_equal(np.array(value), np.array(b[key]), err_msg=key)
    model = chat_model()
    head = load_mtp(killed, model.target)
    assert head.draft_ids is not None
    assert head.draft_ids.shape == (32,)
    readme = (killed / "README.md").read_text()
    assert "Tokens per verify pass" in readme
    assert "| 32 | T 0.7 | independent |" in readme
    with pytest.raises(ConfigError, match="give --resume or another --out"):
        distill(model, options(killed, steps=30), Silent())


def test_memory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = chat_model().target
    given = options(tmp_path)
    assert plan(target, given, "cpu", 1 << 30).needed < 1 << 30
    with pytest.raises(CapacityError, match=r"GiB needed of .*lower --batch-rows"):
        plan(target, given, "cpu", 1 << 16)
    free = plan(target, dataclasses.replace(given, rows=0, tokens=10**7), "cuda", 1 << 28)
    assert free.rows < 4096
    assert free.rows * free.batches * given.length >= 10**7


def test_sliding_windows_are_refused() -> None:
    with pytest.raises(LoadError, match="gemma3_text"):
        distill(tiny.loaded(tiny.gemma3_model()), options(Path("unused")), Silent())


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="minutes or steps"):
        options(tmp_path, steps=None)
    with pytest.raises(ConfigError, match="length must be 16"):
        options(tmp_path, length=3)
