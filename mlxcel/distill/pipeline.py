"""One distillation from start to end: text, training, evaluation, and a drafter's folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from mlxcel.distill.batches import Batches
from mlxcel.distill.corpus import Corpus, draft_ranking
from mlxcel.distill.evaluation import evaluate
from mlxcel.distill.group import Group
from mlxcel.distill.loss import LossSpec
from mlxcel.distill.memory import Plan, plan
from mlxcel.distill.options import Options
from mlxcel.distill.report import readme
from mlxcel.distill.script import ANSWER, ChatFormat
from mlxcel.distill.synthesis import Text, weights_of
from mlxcel.distill.training import Progress, Trainer, TrainSpec
from mlxcel.errors import ConfigError, LoadError
from mlxcel.hardware.memory import device_bytes
from mlxcel.models.drafters.mtp import MTPHead, head_config, load_mtp
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.representation import detect_backend

__all__ = ["Observer", "Result", "distill", "make_spec", "write_text"]

VOCABULARIES = (2048, 4096, 8192, 16384, 32768)


class Observer(Protocol):
    """What a front end shows of a run."""

    def note(self, text: str) -> None:
        """A line about what happens."""

    def tick(self, label: str, done: int, total: int) -> None:
        """Progress of a phase in steps."""

    def trained(self, progress: Progress) -> None:
        """Progress of the training."""


@dataclass(slots=True)
class Result:
    """What came out.

    Attributes
    ----------
    folder : Path
        The drafter's folder.
    evaluation : dict
        See `evaluate`.
    seconds : dict of str to float
        Time of each phase, that of interrupted runs included.
    """

    folder: Path
    evaluation: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def check_target(model: LoadedModel) -> None:
    """Refuse targets that cannot be distilled, by name.

    Raises
    ------
    LoadError
        No head is known for this kind, or it keeps caches of another kind than full attention.
    """
    MTPHead(model.target)
    layout = model.target.layout
    reason = layout.reason
    if layout.states:
        reason = "the model has recurrent layers; Qwen publishes heads of its own for it"
    elif any(window is not None for window in layout.windows or ()):
        reason = "the model has sliding windows"
    if reason:
        raise LoadError(
            f"{model.checkpoint.name}: distill needs full attention in every layer; {reason}"
        )


def make_spec(options: Options, sizes: Plan, backend: str, recorded: dict[str, Any]) -> TrainSpec:
    """How to train on a backend: float32 on the CPU, half precision with float32 masters else."""
    on_cpu = backend == "cpu"
    return TrainSpec(
        unroll=options.unroll, muon_lr=options.muon_lr, adam_lr=options.adam_lr,
        weight_decay=options.weight_decay,
        minutes=options.minutes, steps=options.steps, seed=options.seed,
        checkpoint_seconds=options.checkpoint_seconds,
        dtype=mx.float32 if on_cpu else mx.bfloat16,
        loss=LossSpec(
            decay=options.decay, chunk=sizes.chunk, dtype=mx.float32 if on_cpu else mx.float16
        ),
        compiled=options.compiled, recorded=recorded,
    )  # fmt: skip


def distill(
    model: LoadedModel,
    options: Options,
    observer: Observer,
    *,
    resume: bool = False,
    command: str = "",
    clock: Callable[[], float] = time.monotonic,
    group: Group | None = None,
) -> Result:
    """Make a head for a target.

    Parameters
    ----------
    model : LoadedModel
        The target, dense weights.
    options : Options
        What to do.
    observer : Observer
        Shown what happens.
    resume : bool
        Go on with what is in the folder; without it an unfinished run there is an error.
    command : str
        Recorded in the README.
    clock : callable
        Seconds, monotonic.
    group : Group, optional
        Processes that do this together, in one folder: each writes a part of the text and trains
        on its own batches; the first one evaluates, and has the only whole result.

    Raises
    ------
    LoadError, ConfigError, CapacityError
        The target is not supported, the folder holds another run, or memory does not suffice.
    """
    group = group or Group()
    sizes, corpus = _prepare(model, options, group.size)
    observer.note(sizes.sentence())
    checkpoint = options.out / "checkpoint.safetensors"
    if checkpoint.exists() and not resume:
        raise ConfigError(f"{checkpoint}: there is a run here; give --resume or another --out")
    result = Result(options.out)

    began = clock()
    text = _written(corpus, sizes, group, observer)
    held, labels = corpus.evaluation(observer.tick) if group.rank == 0 else (text, [])
    began = _phase(result, observer, "text", began, clock)
    result.seconds["text"] = round(corpus.seconds, 2)
    ranking = draft_ranking(text, model.target.vocab_size, ChatFormat.of(model.tokenizer).ends)
    config = _train(model, options, sizes, text, ranking, observer, resume, group)
    if group.rank:
        return result
    began = _phase(result, observer, "training", began, clock)
    result.seconds["training"] = config["training"]["train_seconds"]
    mx.clear_cache()
    result.evaluation = _evaluate(model, options, ranking, held, labels, observer)
    _phase(result, observer, "evaluation", began, clock)
    _finish(options.out, config, result, command, sizes)
    return result


def write_text(
    model: LoadedModel, options: Options, observer: Observer, part: int, parts: int
) -> None:
    """Write one part of the training text only; `distill` then finds it.

    Parameters
    ----------
    model, options, observer
        As `distill` takes them.
    part, parts : int
        Which of how many; one process per GPU.
    """
    sizes, corpus = _prepare(model, options, 1)
    corpus.write_part(sizes.batches, sizes.rows, part, parts, observer.tick)


def _prepare(model: LoadedModel, options: Options, processes: int) -> tuple[Plan, Corpus]:
    """Sizes that fit, and the folder of the text; refuses targets that cannot be distilled."""
    check_target(model)
    backend = detect_backend()
    sizes = plan(model.target, options, backend, device_bytes(backend), processes)
    fingerprint = model.checkpoint.fingerprint
    folder = options.out / "text"
    return sizes, Corpus(folder, model.target, model.tokenizer, options, fingerprint)


def _written(corpus: Corpus, sizes: Plan, group: Group, observer: Observer) -> Text:
    """The training text, of which each process writes its part."""
    if not group.alone:
        corpus.write_part(sizes.batches, sizes.rows, group.rank, group.size, observer.tick)
        group.wait()
    return corpus.training(sizes.batches, sizes.rows, observer.tick)


def _phase(
    result: Result, observer: Observer, name: str, began: float, clock: Callable[[], float]
) -> float:
    now = clock()
    result.seconds[name] = round(now - began, 2)
    observer.note(f"{name}: {now - began:.1f} s")
    return now


def _train(
    model: LoadedModel, options: Options, sizes: Plan, text: Text, ranking: Any,
    observer: Observer, resume: bool, group: Group,
) -> dict[str, Any]:  # fmt: skip
    """Train a head; the first process writes it. Returns its config."""
    drafts = min(options.draft_vocab, model.target.vocab_size)
    whole = drafts >= model.target.vocab_size
    head = MTPHead(model.target, None if whole else mx.array(np.sort(ranking[:drafts])))
    batches = Batches(
        model.target, text.tokens, weights_of(text.kinds), rows=sizes.train_rows,
        seed=options.seed, keep=sizes.keep_hidden, group=group,
    )  # fmt: skip
    target = {"name": model.checkpoint.name, "fingerprint": model.checkpoint.fingerprint}
    recorded = options.recorded() | {
        "target": target["fingerprint"], "rows": sizes.rows, "train_rows": sizes.train_rows,
        "processes": group.size,
    }  # fmt: skip
    spec = make_spec(options, sizes, detect_backend(), recorded)
    checkpoint = options.out / "checkpoint.safetensors"
    trainer = Trainer(head, model.target, batches, spec, checkpoint, group=group)
    if resume and trainer.resume():
        observer.note(f"resumed at step {trainer.step}")
    group.wait()  # nobody writes a checkpoint that another still reads
    trainer.train(observer.trained)
    training = options.recorded() | {
        "rows": sizes.rows, "train_rows": sizes.train_rows, "steps": trainer.step,
        "processes": group.size,
        "train_seconds": round(trainer.seconds, 1), "text_tokens": int(text.tokens.size),
        "draft_coverage": _coverage(text, head.draft_ids),
    }  # fmt: skip
    config = head_config(head, block_width=options.block_width, target=target, training=training)
    if group.rank == 0:
        head.save(options.out, config)
    return config


def _evaluate(
    model: LoadedModel, options: Options, ranking: Any, held: Text, labels: list[str],
    observer: Observer,
) -> dict[str, Any]:  # fmt: skip
    served = load_mtp(options.out, model.target)  # what is evaluated is what was written
    others = () if detect_backend() == "cpu" else VOCABULARIES
    sets = _vocabularies(ranking, options.draft_vocab, model.target.vocab_size, others)
    return evaluate(
        served, model.target, held, labels, sets,
        tick=lambda done, total: observer.tick("evaluation", done, total),
    )  # fmt: skip


def _coverage(text: Text, ids: mx.array | None) -> float:
    if ids is None:
        return 1.0
    free = text.tokens[text.kinds == ANSWER]
    return round(float(np.mean(np.isin(free, np.array(ids)))), 5) if len(free) else 0.0


def _vocabularies(
    ranking: Any, drafts: int, vocab: int, others: Sequence[int]
) -> dict[str, mx.array | None]:
    """The trained draft vocabulary first, then others for comparison."""
    first = min(drafts, vocab)
    sizes = [first, *(s for s in others if s < vocab and s != first)]
    sets: dict[str, mx.array | None] = {
        str(size): mx.array(np.sort(ranking[:size])) for size in sizes if size < vocab
    }
    return sets | {str(vocab): None}


def _finish(
    folder: Path, config: dict[str, Any], result: Result, command: str, sizes: Plan
) -> None:
    record = {"config": config, "seconds": result.seconds, "memory": sizes.sentence(),
              "command": command, "evaluation": result.evaluation}  # fmt: skip
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (folder / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(record), encoding="utf-8")
