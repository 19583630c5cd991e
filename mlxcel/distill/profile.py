"""Time of a step of writing and of a step of training, on the real shapes, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxcel.distill.batches import Batches
from mlxcel.distill.memory import GIB, plan
from mlxcel.distill.options import Options
from mlxcel.distill.pipeline import check_target, make_spec
from mlxcel.distill.rows import training_rows
from mlxcel.distill.script import ChatFormat
from mlxcel.distill.synthesis import Writer, row_seeds
from mlxcel.distill.training import Trainer
from mlxcel.hardware.memory import device_bytes
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.representation import detect_backend

__all__ = ["profile"]

PLACES = (64, 384, -1)  # -1: at the end of the row


def profile(model: LoadedModel, options: Options, steps: int) -> Iterator[str]:
    """Lines with the time per step of both phases.

    Parameters
    ----------
    model : LoadedModel
        The target.
    options : Options
        Sizes.
    steps : int
        Steps timed of each.
    """
    check_target(model)
    backend = detect_backend()
    sizes = plan(model.target, options, backend, device_bytes(backend))
    yield sizes.sentence()
    rng = np.random.default_rng(0)
    shape = (2 * sizes.train_rows, options.length)
    tokens = rng.integers(0, model.target.vocab_size, shape).astype(np.uint32)
    drafts = min(options.draft_vocab, model.target.vocab_size)
    head = MTPHead(model.target, mx.arange(drafts, dtype=mx.uint32))
    batches = Batches(model.target, tokens, np.ones(shape, np.float32), rows=sizes.train_rows,
                      seed=0, keep=sizes.keep_hidden)  # fmt: skip
    spec = make_spec(options, sizes, backend, {})
    trainer = Trainer(head, model.target, batches, spec, Path("unused"))
    mx.reset_peak_memory()
    for step in range(steps + 3):
        began = time.perf_counter()
        mx.eval(trainer.advance(0.5))
        yield f"training step {step}: {1000 * (time.perf_counter() - began):.1f} ms"
    began = time.perf_counter()
    for _ in range(steps):
        figures = trainer.advance(0.5)
    mx.eval(figures, trainer.params, trainer.state)
    piped = 1000 * (time.perf_counter() - began) / steps
    yield (
        f"training, {sizes.train_rows} x {options.length}: {piped:.1f} ms a step, pipelined; "
        f"peak {_peak()}"
    )
    del trainer, batches, figures
    mx.clear_cache()
    yield from _writing(model, options, sizes.rows, steps)


def _writing(model: LoadedModel, options: Options, rows: int, steps: int) -> Iterator[str]:
    form = ChatFormat.of(model.tokenizer)
    vocab = model.target.vocab_size
    rows_ = training_rows(model.tokenizer, options, batch=0, rows=rows, vocab=vocab)
    writer = Writer(model.target, rows_.scripts, length=options.length,
                    seeds=row_seeds(0, 0, rows), ends=form.ends)  # fmt: skip
    mx.reset_peak_memory()
    for place in PLACES:
        start = options.length - steps - 3 if place < 0 else min(place, options.length - steps - 3)
        for cache in writer.caches:
            cache.offset = start
        times = []
        for position in range(start + 1, start + steps + 3):
            began = time.perf_counter()
            writer.step(position)
            writer.wait()
            times.append(1000 * (time.perf_counter() - began))
        yield f"text, {rows} rows, position {start}: {_list(times)} ms; peak {_peak()}"


def _list(times: list[float]) -> str:
    return " ".join(f"{value:.1f}" for value in times)


def _peak() -> str:
    return f"{mx.get_peak_memory() / GIB:.1f} GiB"
